"""Member: an application in a simulated process."""

from __future__ import annotations

import asyncio

from rocketmq_aio import ClientConfig
from tests.chaos.loop import Process, SimulatedLoop
from tests.chaos.plan import Client
from tests.chaos.record import MemberRecorder, Record
from tests.chaos.workload import Application, stack


class Member(Application):
    """A process of the plan; it can crash and start again."""

    def __init__(
        self, loop: SimulatedLoop, record: Record, plan: Client, seed: int, namesrv: str
    ) -> None:
        super().__init__(record, plan, seed, ClientConfig(namesrv=namesrv))
        self.record = record
        self._loop = loop
        self.process: Process = loop.process(plan.name)
        self._main: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        return self._main is not None

    def new_recorder(self) -> MemberRecorder:
        return MemberRecorder(self.record, self.name)

    def not_running_seconds(self) -> float:
        return self.process.frozen_seconds

    def start(self) -> None:
        """Start the process, with an application that runs until `stop`."""
        if self.process.dead:
            self.process = self._loop.process(self.plan.name)
        self.stopping = asyncio.Event()
        self._main = self.process.context().run(self._loop.create_task, self.run())

    def crash(self) -> None:
        """Kill the process: no code of it runs any more."""
        self.record.add("crash", self.name)
        self._loop.kill(self.process)
        self._loop.network.kill(self.process)
        self._main = None

    async def stop(self, seconds: float) -> None:
        """Have the application end."""
        main, self._main = self._main, None
        if main is None:
            return
        self.stopping.set()
        done, _ = await asyncio.wait([main], timeout=seconds)
        if not done:
            self.record.violation(f"{self.name} did not end within {seconds:g} s: {stack(main)}")
