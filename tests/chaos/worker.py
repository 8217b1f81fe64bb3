"""Process of a run on real brokers: one client, until SIGTERM; SIGUSR1 ends its sends.

What happens is printed; lines with `VIOLATION` are defects.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from rocketmq_aio import ClientConfig, MessageExt
from tests.chaos.plan import Client
from tests.chaos.workload import Application
from tests.fakes.stopwatch import Stopwatch
from tests.history import Recorder

VIOLATION: Final = "VIOLATION"


class Orders(msgspec.Struct):
    """Instructions of a process.

    :ivar name: of the process; unique in the run
    :ivar addresses: addresses to use in place of advertised ones
    """

    client: Client
    name: str
    seed: int
    namesrv: str
    addresses: dict[str, str]
    folder: str


class Printed(logging.Handler):
    """Prints what happens in this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def add(self, *words: object) -> None:
        sys.stdout.write(f"{monotonic():.6f} {' '.join(map(str, words))}\n")
        sys.stdout.flush()

    def violation(self, text: str) -> None:
        self.add(VIOLATION, " | ".join(text.splitlines()))

    def failure(self, what: str, error: BaseException) -> None:
        self.violation(f"{what} {''.join(traceback.format_exception(error))}")

    def committed(self, uid: str, topic: str) -> None:
        """The history has it."""

    def done(self, group: str, message: MessageExt) -> None:
        """The history has it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the warnings of clients; their errors are violations."""
        text = f"{record.name} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {record.exc_info[1]!r}"
        if record.levelno >= logging.ERROR:
            self.violation(text)
        else:
            self.add("log", record.levelname, text)


class Worker(Application):
    """The application of this process."""

    def __init__(self, orders: Orders, printed: Printed, stopwatch: Stopwatch) -> None:
        config = ClientConfig(
            namesrv=orders.namesrv,
            address_mapper=lambda address: orders.addresses.get(address, address),
        )
        super().__init__(printed, orders.client, orders.seed, config)
        self._recorder = Recorder(Path(orders.folder), orders.name)
        self._process = orders.name
        self._stopwatch = stopwatch

    @property
    def name(self) -> str:
        return f"{self._process}.{self._clients}"

    def new_recorder(self) -> Recorder:
        return self._recorder

    def not_running_seconds(self) -> float:
        return self._stopwatch.delayed


async def run(orders: Orders) -> None:
    """Run the application until SIGTERM."""
    printed, loop = Printed(), asyncio.get_running_loop()
    for name in ("rocketmq_aio", "asyncio"):
        logging.getLogger(name).addHandler(printed)

    def report(_loop: object, context: dict[str, Any]) -> None:
        printed.violation(f"event loop: {context}")

    loop.set_exception_handler(report)
    with Stopwatch() as stopwatch:
        worker = Worker(orders, printed, stopwatch)
        loop.add_signal_handler(signal.SIGTERM, worker.stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, setattr, worker, "quiet", True)
        loop.add_reader(sys.stdin.fileno(), os._exit, 1)  # the process that started this one died
        printed.add("running")
        await worker.run()


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Orders)))
