"""Group member: base of the public consumers with a group engine."""

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
    """A consumer whose group distributes the queues among its members."""

    _engine: E

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic* and commit its progress."""
        self._check_usable()
        await self._engine.unsubscribe(topic)

    def assignment(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        return sorted(q for q, each in self._engine.table.items() if not each.dropped)

    async def ready(self, timeout_seconds: float | None = None) -> None:
        """Return when queues are assigned and the start offset of each is known.

        The consumer keeps trying after an error: you may call this again.

        :raises PermissionDeniedError: the account may not read offsets
        :raises AuthError: brokers do not know the account (any more)
        :raises TimeoutError: not within *timeout_seconds*
        """
        self._check_running()
        with anyio.fail_after(timeout_seconds):
            await self._engine.wait_until_ready()
        self._check_running()

    def events(self) -> AsyncIterator[ConsumerEvent]:
        """Return a stream of events from now on, such as assignments and failures."""
        return self._engine.events.open()

    def statistics(self) -> dict[str, TopicStatistics]:
        """Return rates and averages by topic, of the last minute."""
        return self._engine.statistics.snapshots()

    # --- for the instance -------------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes must be fresh."""
        return self._engine.topics_in_use()

    def heartbeat_data(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""
        return self._engine.heartbeat_data()

    def on_members_changed(self) -> None:
        """Rebalance and check the group after members joined or left."""
        self._engine.rebalancer.wake()
        self._engine.checks.wake()

    def on_route_changed(self, topic: str) -> None:
        """Rebalance after the queues of a topic changed."""
        self._engine.on_route_changed(topic)

    def on_failed(self, cause: BaseException) -> None:
        """Fail waiting calls and leave the group."""
        super().on_failed(cause)
        self._engine.fail()
        self._instance.drop_consumer(self)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at *offsets*, set by an administrator."""
        await self._engine.reset_offsets(offsets)

    def on_own_id_asked(self, check_id: str) -> None:
        """Handle a request about this client id that another client may have sent."""
        self._engine.checks.on_own_id_asked(check_id)

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state, for administration tools."""
        engine = self._engine
        return engine.checks.describe(engine.running_info(), leaving=not engine.running)

    def _check_usable(self) -> None:
        """Raise unless the consumer is running or not started yet."""
        if not self._can_prepare():
            self._check_running()
