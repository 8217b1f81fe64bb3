"""Static topics (5.x): logical queues, which keep their numbers and offsets when they move.

A logical queue is a list of physical queues, its parts.  The last one belongs to the owner, which
stores new messages and executes all requests about the queue, at the brokers of earlier parts where
these are concerned.  A part begins at a logical offset, which is -1 until its predecessor accepts
no more messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Final, NamedTuple

from msgspec import convert
from msgspec.structs import replace

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Handler, HandlerResult, Outcome, Response, resolve
from rocketmq_aio.protocol.bodies import TopicQueueMappingInfo
from rocketmq_aio.protocol.codes import PULL_SUSPEND, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.operations import PhysicalQueue

SEND_FIELDS: Final = ("b", "e")  # topic and queue id
FIELDS: Final = ("topic", "queueId")
SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


class _Request(NamedTuple):
    """A request about a logical queue that this broker owns."""

    command: Command
    connection: ServerConnection
    queue_field: str  # the name of the field with the queue id
    number: str
    parts: Sequence[PhysicalQueue]

    @property
    def ext(self) -> Mapping[str, str]:
        return self.command.ext_fields()

    @property
    def decided(self) -> list[PhysicalQueue]:
        """The parts whose first logical offset is known; the first part is among them."""
        return [part for part in self.parts if part.logic_offset >= 0]

    def part_with(self, offset: int) -> PhysicalQueue:
        """Return the part that has a logical offset, the first one for offsets before it."""
        before = [part for part in self.decided if part.logic_offset <= offset]
        return before[-1] if before else self.decided[0]


class StaticTopics:
    """Executes requests for logical queues.

    :param execute: executes a request for a physical queue of this broker
    :ivar executor_at: returns *execute* of the broker with a name; None if it does not run
    """

    def __init__(self, state: BrokerState, execute: Handler) -> None:
        self.executor_at: Callable[[str], Handler | None] = lambda _: None
        self._state = state
        self._execute = execute
        self._kinds: dict[int, Callable[[_Request], HandlerResult]] = {
            **dict.fromkeys((*SENDS, OtherCode.SEND_MESSAGE), self._send),
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.GET_MAX_OFFSET: lambda each: self._offset_in(each, each.decided[-1]),
            RequestCode.GET_MIN_OFFSET: lambda each: self._offset_in(each, each.decided[0]),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: lambda each: self._at(each.decided[0], each),
        }

    def route_info(self, topic: str) -> TopicQueueMappingInfo | None:
        """Return the part of a route that names the logical queues of this broker."""
        mapping = self._state.mappings.get(topic)
        if mapping is None:
            return None
        last = {number: parts[-1] for number, parts in mapping.hosted_queues.items() if parts}
        owned = {n: part.queue_id for n, part in last.items() if part.bname == mapping.bname}
        info = convert(mapping, TopicQueueMappingInfo, from_attributes=True)
        return replace(info, curr_id_map=owned)

    def process(self, command: Command, connection: ServerConnection) -> HandlerResult:
        """Execute *command*; ErrorResponse if it is about a logical queue of another broker."""
        kind, ext = self._kinds.get(command.code), command.ext_fields()
        topic_field, queue_field = SEND_FIELDS if command.code in SENDS else FIELDS
        mapping = self._state.mappings.get(ext.get(topic_field, ""))
        if kind is None or mapping is None or ext.get("lo") == "false":
            return self._execute(command, connection)
        number, name = ext.get(queue_field, ""), self._state.name
        parts = mapping.hosted_queues.get(int(number)) if number.isdecimal() else None
        if not parts or parts[-1].bname != name:
            remark = f"{number} does not exit in request process of current broker {name}"
            raise ErrorResponse(remark, ResponseCode.NOT_LEADER_FOR_QUEUE)
        return kind(_Request(command, connection, queue_field, number, parts))

    def _at(self, part: PhysicalQueue, request: _Request, **fields: object) -> HandlerResult:
        """Execute *request*, with other *fields*, for the physical queue *part*."""
        is_here = part.bname == self._state.name
        execute = self._execute if is_here else self.executor_at(part.bname)
        if execute is None:
            raise ErrorResponse(f"invoke {part.bname} failed: it does not run")
        changed = {request.queue_field: part.queue_id, **fields}
        ext = {**request.ext, **{name: str(value) for name, value in changed.items()}}
        return execute(replace(request.command, ext=ext), request.connection)

    def _response_at(self, part: PhysicalQueue, request: _Request, **fields: object) -> Response:
        response = self._at(part, request, **fields)
        assert isinstance(response, Response)  # only pulls are held
        return response

    def _send(self, request: _Request) -> Outcome:
        part = request.parts[-1]
        response = self._response_at(part, request)
        if response.code != ResponseCode.SUCCESS:
            return response
        offset = _logical(part, int(response.ext["queueOffset"])) if part.logic_offset >= 0 else -1
        return _with(response, queueId=request.number, queueOffset=offset)

    def _pull(self, request: _Request) -> HandlerResult:
        offset, sys_flag = int(request.ext["queueOffset"]), int(request.ext["sysFlag"])
        part = request.part_with(offset)
        if part is not request.parts[-1]:  # nothing arrives there
            sys_flag &= ~PULL_SUSPEND
        fields = {"queueOffset": _physical(part, offset), "sysFlag": sys_flag}
        outcome = self._at(part, request, **fields)
        if not isawaitable(outcome):
            return _pulled(request, part, offset, outcome)

        async def held() -> Outcome:
            return _pulled(request, part, offset, await resolve(outcome))

        return held()

    def _committed(self, request: _Request) -> HandlerResult:
        """Return the offset committed in the last part that has one."""
        if len(request.parts) == 1:
            return self._at(request.parts[0], request)
        for part in reversed(request.parts):
            try:
                response = self._response_at(part, request, setZeroIfNotFound="false")
            except ErrorResponse as error:
                if error.response.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            else:
                return _with(response, offset=_logical(part, int(response.ext["offset"])))
        remark = "Not found, maybe this is a new consumer group"
        raise ErrorResponse(remark, ResponseCode.QUERY_NOT_FOUND)

    def _commit(self, request: _Request) -> HandlerResult:
        offset = int(request.ext["commitOffset"])
        part = request.part_with(offset)
        return self._at(part, request, commitOffset=_physical(part, offset))

    def _offset_in(self, request: _Request, part: PhysicalQueue) -> Response:
        response = self._response_at(part, request)
        return _with(response, offset=_logical(part, int(response.ext["offset"])))

    def _search(self, request: _Request) -> Response:
        """Return an offset for a time, like real brokers, which can be too low.

        An own part counts if its result is above 0, also if that is its end.
        """
        result = response = Response()
        for part in request.decided:
            response = self._response_at(part, request)
            result = _with(response, offset=_logical(part, int(response.ext["offset"])))
            if part.bname == self._state.name:
                if int(response.ext["offset"]) > 0:
                    return result
                result = response
        return result


def _pulled(request: _Request, part: PhysicalQueue, offset: int, outcome: Outcome) -> Outcome:
    """Return the response of *part* to a pull at the logical *offset*, for the logical queue."""
    if not isinstance(outcome, Response) or "nextBeginOffset" not in outcome.ext:
        return outcome
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    next_offset, least, most = (int(outcome.ext[name]) for name in names)
    code, next_offset, decided = outcome.code, _logical(part, next_offset), request.decided
    past = part is not request.parts[-1] and _physical(part, offset) >= most
    if code != ResponseCode.SUCCESS and past:  # continue in the next part, if it has begun
        code, next_offset = ResponseCode.PULL_NOT_FOUND, offset
        if following := [each for each in decided if each.gen > part.gen]:
            part = following[0]
            code, next_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, part.logic_offset
            least = most = part.start_offset
    if code == ResponseCode.PULL_OFFSET_MOVED and part is not decided[0] and next_offset > offset:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY  # only messages of this part are deleted
    changed = _with(
        outcome,
        nextBeginOffset=next_offset,
        minOffset=_logical(part, least),
        maxOffset=max(_logical(part, most), decided[-1].logic_offset),
        offsetDelta=part.logic_offset - part.start_offset,
    )
    return replace(changed, code=int(code))


def _logical(part: PhysicalQueue, offset: int) -> int:
    return part.logic_offset + max(offset - part.start_offset, 0)


def _physical(part: PhysicalQueue, offset: int) -> int:
    return part.start_offset + max(offset - part.logic_offset, 0)


def _with(response: Response, **fields: object) -> Response:
    changed = {name: str(value) for name, value in fields.items()}
    return replace(response, ext={**response.ext, **changed})
