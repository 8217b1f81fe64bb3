"""``python -m benchmarks.subject.importing``: how long importing the usual classes takes."""

import time

started = time.perf_counter()
from rocketmq_aio import LitePullConsumer, Producer, PushConsumer  # noqa: E402, F401 - measured

print("FIRST", time.perf_counter() - started, flush=True)
