"""Cost of hooks: CPU per send without hooks, with an empty hook and with message trace.

``python -m benchmarks.hook_cost`` prints medians of paired rounds in one process, against the C
stand-in: every round sends with each producer in turns, and is compared with itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

from benchmarks import standin
from rocketmq_aio import Message, MessageTrace, Producer, SendContext
from rocketmq_aio.instance.hook_runner import AnySendHook

IN_FLIGHT: Final = 64
SENDS: Final = 6_400  # per producer and round
PLAIN: Final = "no hook"


class Idle:
    """A hook that does nothing."""

    def before_send(self, context: SendContext) -> None:
        """Do nothing."""

    def after_send(self, context: SendContext) -> None:
        """Do nothing."""


HOOKS: Final[dict[str, AnySendHook | None]] = {
    PLAIN: None,
    "idle hook": Idle(),
    "trace": MessageTrace(),
}


async def cpu_per_send(producer: Producer, message: Message) -> float:
    """Return the CPU seconds of one send among `IN_FLIGHT` concurrent ones."""

    async def send_some() -> None:
        for _ in range(SENDS // IN_FLIGHT):
            await producer.send(message)

    gc.collect()
    started = process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(send_some())
    return (process_time() - started) / SENDS


async def measure(address: str, rounds: int) -> dict[str, list[float]]:
    """Return the figures of each producer by round."""
    message = Message(standin.TOPIC, b"x" * 256, tags="TagA", keys="order-1")
    taken: dict[str, list[float]] = {name: [] for name in HOOKS}
    async with AsyncExitStack() as stack:
        producers = {}
        for number, (name, hook) in enumerate(HOOKS.items()):
            hooks = [hook] if hook else []
            producer = Producer(f"cost-{number}", namesrv=address, hooks=hooks)
            producers[name] = await stack.enter_async_context(producer)
            await cpu_per_send(producer, message)
        for _ in range(rounds):
            for name in random.sample(list(producers), len(producers)):
                taken[name].append(await cpu_per_send(producers[name], message))
    return taken


def main() -> None:
    """Print the medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    with tempfile.TemporaryDirectory() as folder:
        program = standin.build(Path(folder))
        with standin.running(program, cpu=cpus[-1]) as address:
            taken = asyncio.run(measure(address, rounds))
    for name, figures in taken.items():
        ratios = [each / base for each, base in zip(figures, taken[PLAIN], strict=True)]
        print(f"{name}: {median(figures) * 1e6:.2f} us CPU, x {median(ratios):.3f}")
    print(HOOKS["trace"])


if __name__ == "__main__":
    main()
