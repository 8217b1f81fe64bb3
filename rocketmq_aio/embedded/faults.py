"""Faults of embedded servers, for tests of applications and clients."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import chain
from typing import Final, Literal, Protocol, Self, TypedDict, Unpack, cast

from msgspec.structs import replace

from rocketmq_aio.config.arguments import checked_argument, checked_arguments
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.loop_thread import LoopThread, from_any_thread, waits_for_clients
from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier, wake
from rocketmq_aio.embedded.responses import Close, Handler, HandlerResult, Outcome, Raw, Response
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body

RequestKind = Literal[
    "send", "send_back", "reply", "end_transaction", "recall", "pull", "pop", "ack",
    "change_invisible", "commit", "query_offset", "heartbeat", "lock", "unlock", "members", "route",
]  # fmt: skip
Requests = RequestKind | int | Iterable[RequestKind | int] | None
Respond = Callable[["FaultyServer", Command, ServerConnection], HandlerResult]
Change = Callable[["FaultyServer", Command, Response], Outcome]


class FaultyServer(Protocol):
    """The methods of a server that faults use."""

    name: str

    async def execute(self, command: Command, connection: ServerConnection) -> Outcome: ...

    def frame(self, command: Command, response: Response) -> bytes: ...


KINDS: Final[dict[str, frozenset[int]]] = {
    "send": frozenset(
        {OtherCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    ),
    "send_back": frozenset({RequestCode.CONSUMER_SEND_MSG_BACK}),
    "reply": frozenset({324, RequestCode.SEND_REPLY_MESSAGE_V2}),
    "end_transaction": frozenset({RequestCode.END_TRANSACTION}),
    "recall": frozenset({RequestCode.RECALL_MESSAGE}),
    "pull": frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}),
    "pop": frozenset({RequestCode.POP_MESSAGE}),
    "ack": frozenset({RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE}),
    "change_invisible": frozenset({RequestCode.CHANGE_MESSAGE_INVISIBLETIME}),
    "commit": frozenset({RequestCode.UPDATE_CONSUMER_OFFSET}),
    "query_offset": frozenset({RequestCode.QUERY_CONSUMER_OFFSET}),
    "heartbeat": frozenset({RequestCode.HEART_BEAT}),
    "lock": frozenset({RequestCode.LOCK_BATCH_MQ}),
    "unlock": frozenset({RequestCode.UNLOCK_BATCH_MQ}),
    "members": frozenset({RequestCode.GET_CONSUMER_LIST_BY_GROUP}),
    "route": frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC}),
}
MAX_REQUESTS: Final = 1000
CONNECT: Final = -1  # code of a new connection
GARBAGE: Final = bytes(range(255, 127, -1))
UNKNOWN_OPAQUE: Final = 0x7FFF_FFF0

_SELECTION: Final = frozenset(("topic", "group", "broker", "times"))
_SHORT_NAMES: Final = KINDS["send"] | KINDS["reply"]  # header fields of one letter
_TOPIC_FIELDS: Final = ("topic", "originTopic")
_GROUP_FIELDS: Final = ("consumerGroup", "producerGroup", "group", "groupName", "destGroup")


class Selection(TypedDict, total=False):
    """Requests that a fault applies to; see `Faults`."""

    topic: str | None
    group: str | None
    broker: str | None
    times: int | None


class LossySelection(Selection, total=False):
    """The same, and whether the requests are executed."""

    executed: bool


class Fault:
    """A fault; as a context manager it is removed at the end of the block.

    :ivar count: requests it was applied to
    :ivar requests: the newest of them
    """

    def __init__(
        self, faults: Faults, codes: frozenset[int] | None, respond: Respond, where: Selection
    ) -> None:
        _check(where, [server.name for server in faults.servers])
        self.count = 0
        self.requests: deque[Command] = deque(maxlen=MAX_REQUESTS)
        self.times = where.get("times", 1)
        self.respond = respond
        self._codes = codes
        self._topic, self._group = where.get("topic"), where.get("group")
        self._broker = where.get("broker")
        self._faults = faults
        self._changed = Notifier()

    @property
    def thread(self) -> LoopThread:
        return self._faults.thread

    def remove(self) -> None:
        """Apply it to no further request; held responses stay held."""
        self._faults.remove(self)

    @waits_for_clients
    @checked_arguments
    async def wait(self, count: int = 1, seconds: float = WAIT_SECONDS) -> list[Command]:
        """Wait until it was applied to *count* requests; return `requests`.

        :raises TimeoutError: it was not within *seconds*
        """
        what = f"{count} request(s) of a fault"
        await self._changed.until(lambda: self.count >= count, what, seconds)
        return list(self.requests)

    def matches(self, server: FaultyServer, command: Command) -> bool:
        wanted = command.code != CONNECT if self._codes is None else command.code in self._codes
        if not wanted or self._broker not in (None, server.name):
            return False
        if self._topic is None and self._group is None:
            return True
        topics, groups = names_of(command)
        return self._topic in (None, *topics) and self._group in (None, *groups)

    def used(self, command: Command) -> None:
        """Count a request; the last one removes the fault."""
        self.count += 1
        self.requests.append(command)
        if self.count == self.times:
            self._faults.remove(self)
        self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class HeldResponses(Fault):
    """Executes requests and holds their responses until they are released."""

    def __init__(self, faults: Faults, codes: frozenset[int] | None, where: LossySelection) -> None:
        super().__init__(faults, codes, _after(self._released, where), where)
        self._held: dict[asyncio.Future[None], Command] = {}

    @property
    def held(self) -> list[Command]:
        """The requests whose responses are held, oldest first."""
        return list(self._held.values())

    @waits_for_clients
    @checked_arguments
    async def wait(self, count: int = 1, seconds: float = WAIT_SECONDS) -> list[Command]:
        """Wait for *count* held responses; return their requests.

        :raises TimeoutError: there were fewer after *seconds*
        """
        what = f"{count} held response(s)"
        await self._changed.until(lambda: len(self._held) >= count, what, seconds)
        return self.held

    @from_any_thread
    def release(self, *indexes: int) -> None:
        """Release the responses at *indexes* in this order; default: all.

        :raises IndexError: fewer responses are held
        """
        held = list(self._held)
        for released in [held[index] for index in indexes or range(len(held))]:
            self._held.pop(released, None)
            wake(released)

    async def _released(self, command: Command) -> None:
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[released] = command
        self._faults.held[released] = None
        self._changed.notify()
        try:
            await released
        finally:  # the connection may have ended
            self._held.pop(released, None)
            del self._faults.held[released]


class Faults:
    """Faults of the servers of a cluster.

    Each method adds a fault for requests of a kind: a name such as "send", a request code, several
    of them, or None for all requests. Keywords narrow them down: `topic=`, `group=`, `broker=` (a
    broker name or "namesrv"), and `times=`, 1 by default, None for all until `remove` or `clear`::

        cluster.faults.refuse("send", ResponseCode.SYSTEM_BUSY, topic="orders", times=3)
        with cluster.faults.drop("commit", times=None):
            ...

    A request meets the first fault that matches: limited ones in the order of their calls, then
    those for all requests, the newest first. Unless a method says otherwise, requests are executed:
    a fault spoils the response. ``executed=False`` makes the request itself get lost.

    All methods raise `ValueError` or `TypeError` for arguments that no request can meet.

    :ivar servers: those that *broker* can name
    :ivar held: futures of held responses, of all faults
    """

    def __init__(self, clock: Clock | None = None, thread: LoopThread | None = None) -> None:
        self.thread = thread or LoopThread()
        self._clock = clock or Clock()
        self._limited: list[Fault] = []
        self._kept: list[Fault] = []  # the newest first
        self.servers: list[FaultyServer] = []
        self.held: dict[asyncio.Future[None], None] = {}
        self.active = False

    # --- responses ------------------------------------------------------------------------------

    def refuse(
        self,
        requests: Requests,
        code: int = ResponseCode.SYSTEM_BUSY,
        remark: str = "refused by a fault of the embedded cluster",
        *,
        executed: bool = False,
        **where: Unpack[Selection],
    ) -> Fault:
        """Respond with another code; the request is not executed, unless *executed* is set."""
        if not isinstance(code, int):
            raise TypeError(f"code={code!r}: expected a response code")
        if not executed:
            return self.handle(requests, Response(code, remark=remark), **where)
        return self._change(
            requests, lambda _s, _c, response: replace(response, code=code, remark=remark), where
        )

    def delay(self, requests: Requests, seconds: float, **where: Unpack[LossySelection]) -> Fault:
        """Respond *seconds* later; with ``executed=False`` also execute later."""
        checked_argument("seconds", seconds, float)
        return self._add(requests, _after(lambda _: self._clock.wait(seconds), where), where)

    def hold(self, requests: Requests, **where: Unpack[LossySelection]) -> HeldResponses:
        """Hold responses until `HeldResponses.release`; with ``executed=False`` the requests."""
        held = HeldResponses(self, _codes(requests), where)
        self.insert(held)
        return held

    def drop(self, requests: Requests, **where: Unpack[LossySelection]) -> Fault:
        """Send no response."""
        return self._alter(requests, lambda _: None, where)

    def close(self, requests: Requests, **where: Unpack[LossySelection]) -> Fault:
        """Close the connection instead of responding."""
        return self._alter(requests, lambda _: Close(), where)

    def reset(self, requests: Requests, **where: Unpack[LossySelection]) -> Fault:
        """Reset the connection instead of responding."""
        return self._alter(requests, lambda _: Close(reset=True), where)

    def truncate(
        self, requests: Requests, *, close: bool = True, **where: Unpack[Selection]
    ) -> Fault:
        """Send half of the response, then close the connection or send nothing."""
        return self._alter(requests, lambda frame: Raw(frame[: len(frame) // 2], close), where)

    def duplicate(self, requests: Requests, **where: Unpack[Selection]) -> Fault:
        """Send the response twice."""
        return self._alter(requests, lambda frame: Raw(frame * 2), where)

    def garbage(
        self,
        requests: Requests,
        data: bytes = GARBAGE,
        *,
        after_response: bool = False,
        **where: Unpack[Selection],
    ) -> Fault:
        """Send bytes that are not a frame, instead of the response or after it."""
        return self._alter(
            requests, lambda frame: Raw(frame + data if after_response else data), where
        )

    def wrong_opaque(
        self, requests: Requests, opaque: int = UNKNOWN_OPAQUE, **where: Unpack[Selection]
    ) -> Fault:
        """Respond with the opaque of another request, or of none."""

        def change(server: FaultyServer, command: Command, response: Response) -> Outcome:
            return Raw(server.frame(Command(command.code, opaque), response))

        return self._change(requests, change, where)

    def handle(
        self, requests: Requests, handler: Handler | Outcome, **where: Unpack[Selection]
    ) -> Fault:
        """Respond with *handler*, a function of command and connection, or with an outcome.

        A handler may be a coroutine function, and may call `process` of the server for the normal
        response. An exception closes the connection, and the cluster raises it at its end.
        """
        checked_argument("handler", handler, Callable[..., object] | Outcome)
        if callable(handler):
            return self._add(requests, lambda _s, *request: handler(*request), where)
        return self._add(requests, lambda *_: handler, where)

    def connect(
        self,
        *,
        data: bytes = b"",
        close: bool = True,
        reset: bool = False,
        **where: Unpack[Selection],
    ) -> Fault:
        """Send *data* on new connections, then close or reset them."""
        return self.handle(CONNECT, Close(reset=True) if reset else Raw(data, close), **where)

    # --- inside ---------------------------------------------------------------------------------

    @from_any_thread
    def clear(self) -> None:
        """Remove all faults, and release all held responses."""
        for released in self.held:
            wake(released)
        self._limited.clear()
        self._kept.clear()
        self.active = False

    @from_any_thread
    def insert(self, fault: Fault) -> None:
        if fault.times is None:
            self._kept.insert(0, fault)
        else:
            self._limited.append(fault)
        self.active = True

    @from_any_thread
    def remove(self, fault: Fault) -> None:
        """Remove a fault; without effect when it is gone."""
        for faults in (self._limited, self._kept):
            if fault in faults:
                faults.remove(fault)
        self.active = bool(self._limited or self._kept)

    def take(self, server: FaultyServer, command: Command) -> Fault | None:
        """Return the fault that *command* meets, and count it."""
        for fault in (*self._limited, *self._kept):
            if fault.matches(server, command):
                fault.used(command)
                return fault
        return None

    def _add(self, requests: Requests, respond: Respond, where: Selection) -> Fault:
        fault = Fault(self, _codes(requests), respond, where)
        self.insert(fault)
        return fault

    def _alter(
        self, requests: Requests, spoil: Callable[[bytes], Outcome], where: Selection
    ) -> Fault:
        """Add a fault that replaces the frame of the response."""
        return self._change(
            requests, lambda server, *response: spoil(server.frame(*response)), where
        )

    def _change(self, requests: Requests, change: Change, where: Selection) -> Fault:
        """Add a fault that replaces the response."""
        executed = _executed(where)

        async def respond(
            server: FaultyServer, command: Command, connection: ServerConnection
        ) -> Outcome:
            outcome = await server.execute(command, connection) if executed else Response()
            return change(server, command, outcome) if isinstance(outcome, Response) else outcome

        return self._add(requests, respond, where)


def _after(wait: Callable[[Command], Awaitable[None]], where: LossySelection) -> Respond:
    """Return what responds after *wait*; the request is executed before, or after it."""
    executed = _executed(where)

    async def respond(
        server: FaultyServer, command: Command, connection: ServerConnection
    ) -> Outcome:
        outcome = await server.execute(command, connection) if executed else None
        await wait(command)
        return outcome if executed else await server.execute(command, connection)

    return respond


def names_of(command: Command) -> tuple[set[str], set[str]]:
    """Return the topics and the groups that a request names."""
    fields = command.ext_fields()
    if command.code in _SHORT_NAMES and "b" in fields:
        return {fields["b"]}, {fields.get("a", "")}
    topics = {fields[name] for name in _TOPIC_FIELDS if name in fields}
    groups = {fields[name] for name in _GROUP_FIELDS if name in fields}
    if not topics and not groups and command.body:
        _names_of_body(command.body, topics, groups)
    return topics, groups


def _names_of_body(body: bytes, topics: set[str], groups: set[str]) -> None:
    """Add the names in the body of a heartbeat, a lock request or a batch of acks."""
    try:
        entries = [read_body(body, object)]
    except CodecError:
        return
    while entries:
        entry = entries.pop()
        if isinstance(entry, list):
            entries += entry
        elif isinstance(entry, dict):
            entries += [value for value in entry.values() if isinstance(value, list | dict)]
            texts = {name: value for name, value in entry.items() if isinstance(value, str)}
            topics |= {texts[name] for name in texts.keys() & {"topic", "t"}}
            groups |= {texts[name] for name in texts.keys() & {*_GROUP_FIELDS, "c"}}


def _codes(requests: Requests) -> frozenset[int] | None:
    """Return the codes of *requests*, None for all; ValueError if one is unknown, or none given."""
    if requests is None:
        return None
    if isinstance(requests, str) or not isinstance(requests, Iterable):
        requests = (requests,)
    several = list(requests)
    unknown = [each for each in several if not isinstance(each, int) and each not in KINDS]
    if unknown or not several:
        wrong: object = unknown[0] if unknown else requests
        raise ValueError(
            f"requests={wrong!r}: choose from {', '.join(KINDS)},"
            " give a request code, several of them, or None for all requests"
        )
    codes = (KINDS[each] if isinstance(each, str) else {each} for each in several)
    return frozenset(chain.from_iterable(codes))


def _executed(where: Selection) -> bool:
    """Return the argument *executed*, and remove it from the others."""
    return bool(cast("LossySelection", where).pop("executed", True))


def _check(where: Selection, names: Collection[str]) -> None:
    """Raise TypeError or ValueError for a selection that no request can meet."""
    if unknown := sorted(where.keys() - _SELECTION):
        expected = ", ".join(sorted(_SELECTION))
        raise TypeError(f"{unknown[0]}: this fault has no such argument; it has {expected}")
    for name in ("topic", "group", "broker"):
        value: object = where.get(name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}={value!r}: expected one name; add a fault for each")
    times, broker = where.get("times", 1), where.get("broker")
    checked_argument("times", times, int | None)
    if times == 0:
        raise ValueError(f"times={times!r}: expected 1 or more, or None for all requests")
    if broker is not None and broker not in names:
        raise ValueError(f"broker={broker!r}: choose from {', '.join(dict.fromkeys(names))}")
