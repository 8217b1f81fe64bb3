"""What producers and consumers are to the instance that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from rocketmq_aio.message import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumerData, ConsumerRunningInfo


class Owner(Protocol):
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


class ConsumerOwner(Owner, Protocol):
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

    def running_info(self) -> ConsumerRunningInfo:
        """Its state, for administration tools."""
        ...
