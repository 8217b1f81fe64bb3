"""Allocation by machine room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, Protocol, TypeVar

from rocketmq_aio.config.consumer import AllocateStrategy, check_strategy
from rocketmq_aio.config.validation import checked_several
from rocketmq_aio.consumer.rebalance.strategies.allocation import in_namespace, strategy_name
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue

T = TypeVar("T")

ROOM_SEPARATOR: Final = "@"


class MachineRoomResolver(Protocol):
    """Returns the machine rooms of brokers and clients, the same in every member of a group.

    Rooms are non-empty strings; anything else fails the round, which changes nothing.
    """

    def room_of_broker(self, queue: MessageQueue) -> str:
        """Return the room of the broker that holds *queue*."""
        ...

    def room_of_client(self, client_id: str) -> str:
        """Return the room of a member; its address is the part before the ``@``."""
        ...


class AllocateByMachineRoom:
    """Allocates queues of brokers named ``<room>@<broker>`` in *rooms*; others are not read.

    :raises ConfigError: *rooms* is not a collection of names; when called: no broker of the
        topic has such a name
    """

    name: ClassVar[str] = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        names = tuple(checked_several("rooms", rooms))
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError("rooms", names, "expected at least one name, and only names")
        self.rooms = frozenset(names)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the contiguous block of *client_id*, and at most one of the remaining queues."""
        if client_id not in client_ids:
            return []
        kept = [queue for queue in queues if _room_in_name(queue) in self.rooms]
        if queues and all(_room_in_name(queue) is None for queue in queues):
            raise ConfigError("rooms", queues[0].broker_name, "no broker is named <room>@<broker>")
        index = client_ids.index(client_id)
        share, surplus = divmod(len(kept), len(client_ids))
        last = len(client_ids) * share + index
        return kept[index * share : (index + 1) * share] + kept[last : last + (index < surplus)]


class AllocateMachineRoomNearby:
    """Allocates the queues of each room to its members, or to all members if it has none.

    *inner* allocates the queues within a room.

    :raises ConfigError: *inner* is not a strategy or *resolver* not a resolver; when called: the
        resolver does not know a room
    """

    def __init__(self, inner: AllocateStrategy, resolver: MachineRoomResolver) -> None:
        check_strategy("inner", inner, "expected a strategy")
        for method in ("room_of_broker", "room_of_client"):
            if isinstance(resolver, type) or not callable(getattr(resolver, method, None)):
                raise ConfigError("resolver", resolver, f"expected an object with {method}()")
        self._inner = inner
        self._resolver = resolver
        self.name = f"MACHINE_ROOM_NEARBY-{strategy_name(inner)}"

    def in_namespace(self, outer: Callable[[str], str]) -> AllocateMachineRoomNearby:
        """Return the strategy for a namespace; the resolver gets names without it."""
        return AllocateMachineRoomNearby(in_namespace(self._inner, outer), self._resolver)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of *client_id* in its own room and in every room without members."""
        queues_in = _by_room(queues, self._resolver.room_of_broker)
        members_in = _by_room(client_ids, self._resolver.room_of_client)
        given: list[MessageQueue] = []
        for room in sorted(queues_in):
            members = members_in.get(room, client_ids)
            if client_id in members:
                given += self._inner(client_id, queues_in[room], list(members))
        return given


def _room_in_name(queue: MessageQueue) -> str | None:
    room, *rest = queue.broker_name.split(ROOM_SEPARATOR)
    return room if len(rest) == 1 else None


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    by_room: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not isinstance(room, str) or not room:
            raise ConfigError("resolver", room, f"expected the name of the room of {thing!r}")
        by_room.setdefault(room, []).append(thing)
    return by_room
