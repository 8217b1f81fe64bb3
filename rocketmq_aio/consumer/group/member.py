"""Group member: base of the public consumers with a group engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import anyio

from rocketmq_aio.config.validation import checked_seconds
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.statistics import TopicStatistics
from rocketmq_aio.consumer.group.group_engine import GroupEngine
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue

E = TypeVar("E", bound=GroupEngine[Any])


class GroupMember(ClientBase, Generic[E]):
    """A consumer whose group distributes the queues among its members."""

    _engine: E

    async def close(self) -> None:
        """Leave the group and release all resources; bounded in time, may be called twice.

        When cancelled, it continues in the background.  Called in a handler or a listener of this
        consumer, it returns at once, and waits for the end of that call in the background.
        """
        if self._engine.is_calling():
            self._engine.stop_calling()
            self._start_release()
        else:
            await super().close()

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic* and commit its progress.

        Called in `on_assigned` or `on_revoked`, it ends the delivery and returns; the rest follows
        after the listener.
        """
        self._check_usable()
        await self._engine.unsubscribe(check_topic(topic))

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
        if timeout_seconds is not None:
            checked_seconds("timeout_seconds", timeout_seconds, least=0)
        with anyio.move_on_after(timeout_seconds) as scope:
            await self._engine.wait_until_ready()
        if scope.cancelled_caught:
            cause = self._engine.why_not_ready()
            raise TimeoutError(f"{self!r} is not ready after {timeout_seconds} s: {cause}")
        self._check_running()

    def events(self) -> AsyncIterator[ConsumerEvent]:
        """Return a stream of events from now on, such as assignments and failures."""
        return self._engine.events.open()

    def statistics(self) -> dict[str, TopicStatistics]:
        """Return rates and averages by topic, of the last minute."""
        return self._engine.statistics.snapshots()

    def on_failed(self, cause: BaseException) -> None:
        super().on_failed(cause)
        self._engine.fail()

    async def _open(self) -> None:
        await self._engine.open()
