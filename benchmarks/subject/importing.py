"""``python -m benchmarks.subject.importing``: how long ``import rocketmq_aio`` takes."""

import time

started = time.perf_counter()
import rocketmq_aio  # noqa: E402, F401 - the import is what is measured

print("FIRST", time.perf_counter() - started, flush=True)
