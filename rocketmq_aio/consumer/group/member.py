"""The public face that all consumers with a group engine share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Generic, TypeVar

import anyio

from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.statistics import TopicStatistics
from rocketmq_aio.consumer.group.engine import GroupEngine
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumerData, ConsumerRunningInfo

E = TypeVar("E", bound=GroupEngine[Any])


class GroupMember(ClientBase, Generic[E]):
    """A consumer that shares queues out with the other members of its group."""

    _engine: E

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic*; what is settled of it is committed."""
        self._check_usable()
        await self._engine.unsubscribe(topic)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer reads now, sorted."""
        return sorted(q for q, each in self._engine.table.items() if not each.dropped)

    async def ready(self, timeout_seconds: float | None = None) -> None:
        """Return when the first assignment stands and it is known where its queues begin.

        The consumer goes on trying whatever is raised: it may be called again.

        :raises PermissionDeniedError: the account may not ask where queues begin or end
        :raises AuthError: brokers do not know the account (any more)
        :raises TimeoutError: not within *timeout_seconds*
        """
        self._check_running()
        with anyio.fail_after(timeout_seconds):
            await self._engine.wait_until_ready()
        self._check_running()

    def events(self) -> AsyncIterator[ConsumerEvent]:
        """Return a stream of what happens from now on: assignments, corrections, failures."""
        return self._engine.events.open()

    def statistics(self) -> dict[str, TopicStatistics]:
        """Return how fast each topic was read during the last minute."""
        return self._engine.statistics.snapshots()

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Topics whose routes must be fresh."""
        return self._engine.topics_in_use()

    def heartbeat_data(self) -> ConsumerData:
        """What heartbeats tell about this consumer."""
        return self._engine.heartbeat_data()

    def on_members_changed(self) -> None:
        """A member came or went."""
        self._engine.rebalancer.wake()
        self._engine.checks.wake()

    def on_route_changed(self, topic: str) -> None:
        """The queues of a topic changed."""
        self._engine.on_route_changed(topic)

    def on_failed(self, cause: BaseException) -> None:
        """Nothing works any more: tell whoever waits, and leave the group."""
        super().on_failed(cause)
        self._engine.fail()
        self._instance.drop_consumer(self)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group."""
        await self._engine.reset_offsets(offsets)

    def on_own_id_asked(self, check_id: str) -> None:
        """A consumer asked about its own client id, which is this one's, too."""
        self._engine.checks.on_own_id_asked(check_id)

    def running_info(self) -> ConsumerRunningInfo:
        """The state of this consumer."""
        engine = self._engine
        return engine.checks.describe(engine.running_info(), leaving=not engine.running)

    def _check_usable(self) -> None:
        """Before the start everything can be prepared; after the end nothing."""
        if not self._can_prepare():
            self._check_running()
