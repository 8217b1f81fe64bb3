"""What producers and consumers are to the instance that they belong to."""

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
        """Topics whose routes it wants to be kept fresh."""
        ...

    def on_route_changed(self, topic: str) -> None:
        """The queues of a topic changed, became known or are gone."""
        ...

    def on_failed(self, cause: BaseException) -> None:
        """The instance failed for good: every later call should say so."""
        ...


class InnerConsumer(InnerClient, Protocol):
    """What brokers may ask of a consumer besides."""

    def heartbeat_data(self) -> ConsumerData:
        """Group and subscriptions, as heartbeats tell them."""
        ...

    def on_members_changed(self) -> None:
        """A member of the group came or went: rebalance soon."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets; queues it does not hold are ignored."""
        ...

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Where it stands in the queues that it holds."""
        ...

    def on_own_id_asked(self, check_id: str) -> None:
        """A consumer asked about its own client id, which is this one's, too."""
        ...

    def running_info(self) -> ConsumerRunningInfo:
        """Its state, for administration tools."""
        ...


@runtime_checkable
class InnerTransactionProducer(Protocol):
    """A producer that brokers may ask how a transaction ended."""

    def on_transaction_check(
        self, address: str, header: CheckTransactionState, message: MessageExt
    ) -> None:
        """The broker at *address* asks about its half message; the answer is another request."""
        ...


@runtime_checkable
class DirectConsumer(Protocol):
    """A consumer with a handler, which an administrator may try with a message of choice."""

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeDirectlyResult:
        """Run the handler on *message*, whatever was subscribed to; no offset changes.

        What the handler raises is part of the result.  It is cancelled when the broker would not
        wait for the answer any longer.
        """
        ...
