"""Protocols of producers and consumers, as their instance calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumeDirectlyResult, ConsumerData, ConsumerRunningInfo
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState


class InnerClient(Protocol):
    """A producer or consumer, registered under its group."""

    @property
    def group(self) -> str:
        """The group it is registered under."""
        ...

    def topics(self) -> Iterable[str]:
        """Topics whose routes are to be refreshed."""
        ...

    def on_route_changed(self, topic: str) -> None:
        """Called when the route of a topic has changed, appeared or gone.

        Producers and readers get all topics; consumers theirs (see `MQClientInstance.use_topic`).
        """

    def on_failed(self, cause: BaseException) -> None:
        """Called when the instance has failed: every later call must raise."""


class InnerConsumer(InnerClient, Protocol):
    """A consumer, with handlers for requests of brokers."""

    def heartbeat_data(self) -> ConsumerData:
        """Return group and subscriptions for heartbeats."""
        ...

    def on_members_changed(self) -> None:
        """Called when the members of the group have changed: rebalance soon."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at *offsets*; unassigned queues are ignored."""

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the positions of the assigned queues."""
        ...

    def on_own_id_queried(self, check_id: str) -> None:
        """Called when another consumer with the same client id has queried its owner."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state for administration tools."""
        ...


@runtime_checkable
class InnerTransactionProducer(Protocol):
    """A producer that handles transaction checks."""

    def on_transaction_check(
        self, address: str, header: CheckTransactionState, message: MessageExt
    ) -> None:
        """Called with a half message; the decision is sent by a request to *address*."""


@runtime_checkable
class DirectConsumer(Protocol):
    """A consumer whose handler an administrator can run with a chosen message."""

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeDirectlyResult:
        """Run the handler with *message*, regardless of subscriptions; offsets do not change.

        An exception of the handler is part of the result.  The call is cancelled when the broker
        stops waiting.
        """
        ...
