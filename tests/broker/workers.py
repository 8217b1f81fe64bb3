"""Worker processes of tests: starts, reads and kills them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

START_SECONDS = 30.0


class WorkerProcess:
    """One `tests.broker.worker`; *batches* are the poll results it printed.

    A message is (queue id, offset, body).
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.batches: list[list[tuple[int, int, str]]] = []
        self.queues = 0
        self._reading = asyncio.create_task(self._read())
        self._ready = asyncio.Event()

    @property
    def got(self) -> list[tuple[int, int, str]]:
        return [message for batch in self.batches for message in batch]

    async def wait_ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            await self._ready.wait()

    async def kill(self) -> None:
        """Kill it with SIGKILL and read its remaining output."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                return  # killed while printing
            event: dict[str, Any] = json.loads(line)
            if "ready" in event:
                self.queues = event["ready"]
                self._ready.set()
            if event.get("got"):
                self.batches.append([(n, offset, body) for n, offset, body in event["got"]])


@asynccontextmanager
async def worker(
    namesrv: str, group: str, topic: str, *numbers: int
) -> AsyncIterator[WorkerProcess]:
    """A worker with assigned queues; killed at the end."""
    arguments = ["-m", "tests.broker.worker", namesrv, group, topic, *map(str, numbers)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    running = WorkerProcess(process)
    try:
        await running.wait_ready()
        yield running
    finally:
        await running.kill()
