"""The flows of the soak test, each with another kind of producer and of consumer, as one load."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from rocketmq_aio import ProducerConfig
from rocketmq_aio.testing import Cluster
from tests.soak.flows import FLOWS, Flow, PlainToPopMode
from tests.soak.servers import prescribe_popping
from tests.unit.remoting.until import until

QUEUES: Final = 2  # per broker
RATE: Final = 200.0  # messages per second of all flows
PROGRESS_SECONDS: Final = 90.0
DRAIN_SECONDS: Final = 120.0
# A busy machine causes no error, and no retry that stores a message twice.
PATIENT: Final = ProducerConfig(send_timeout_seconds=30.0, retries=0)


class Flows:
    """Sends and receives with all kinds of clients during its block.

    :param suffix: of topics and groups
    """

    def __init__(self, namesrv: str, suffix: str) -> None:
        self.all = [kind(namesrv, RATE) for kind in FLOWS]
        for flow in self.all:
            flow.topic = f"{flow.name}-{suffix}"
            flow.config = PATIENT

    def create_topics(self, cluster: Cluster) -> None:
        """Create the topics; blocks."""
        for flow in self.all:
            cluster.create_topic(flow.topic, queues=QUEUES)
        popped = self.of(PlainToPopMode)
        prescribe_popping(cluster, popped.topic, f"{popped.topic}-group")

    def of(self, kind: type[Flow]) -> Flow:
        return next(flow for flow in self.all if isinstance(flow, kind))

    async def __aenter__(self) -> Self:
        try:
            for flow in self.all:
                await flow.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def progress(self, more: int = 10) -> None:
        """Wait until *more* sends of each flow have returned, and as many messages arrived."""
        goals = [(flow, flow.ledger.sent + more, flow.ledger.received + more) for flow in self.all]

        def lacking() -> list[str]:
            return [
                flow.name
                for flow, sent, received in goals
                if flow.ledger.sent < sent or flow.ledger.received < received
            ]

        try:
            await until(lambda: not lacking(), "progress", PROGRESS_SECONDS)
        except TimeoutError as error:
            error.add_note(f"no progress of {lacking()}; failed: {self.errors()}")
            raise
        for flow in self.all:
            flow.check_running()

    async def finish(self) -> None:
        """Stop sending; wait until every message that was sent has been received."""
        for flow in self.all:
            flow.sending = False
        try:
            await until(lambda: not self.missing(), "all messages", DRAIN_SECONDS)
        except TimeoutError as error:
            error.add_note(f"missing: {self.missing()}")
            raise

    def missing(self) -> dict[str, int]:
        """Return the number of messages that were sent and not received, by flow."""
        return {each.name: each.ledger.missing for each in self.all if each.ledger.missing}

    def errors(self) -> dict[str, dict[str, int]]:
        """Return the number of errors by flow and kind."""
        return {each.name: dict(each.ledger.errors) for each in self.all if each.ledger.errors}

    def copies(self) -> dict[str, int]:
        """Return the number of repeated deliveries, by flow."""
        return {each.name: each.ledger.extra for each in self.all if each.ledger.extra}

    def disordered(self) -> int:
        """Return the number of messages that came after a later one of their key."""
        return sum(each.ledger.disordered for each in self.all)

    async def _close(self) -> None:
        await asyncio.gather(*(flow.close() for flow in self.all))
