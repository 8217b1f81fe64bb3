"""Recording of requests: commits, acknowledgements, locks, messages sent back, decisions."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import BatchAckRequest, LockBatchRequest, LockBatchResponse
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.receipt import RETRY_JOINTS, parse_receipt
from rocketmq_aio.protocol.requests.send import EndTransaction
from tests.history import events
from tests.history.events import UID, Event, short_body
from tests.unit.protocol.wire_files import command_in

SENDS: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
# Kinds that are recorded by their frames: see `_exchange_recorded`.
IN_FRAMES: Final = {int(RequestCode.END_TRANSACTION): EndTransaction}
STATES: Final = {8: "commit", 12: "rollback", 0: "unknown"}
_UID_IN_FRAME: Final = re.compile(UID.encode() + b"\x01([^\x02]+)\x02")


class Sink(Protocol):
    """Receiver of events: a `Recorder`.

    :ivar in_flight: numbers of sends by uid
    """

    in_flight: dict[str, str]

    def add(self, event: Event) -> None: ...

    def number(self) -> str: ...


def record_requests(instance: MQClientInstance, sink: Sink) -> None:
    """Record the requests of *instance* from now on."""
    remoting: Any = instance.remoting
    remoting.request = partial(_request, sink, instance, remoting.request)
    remoting.oneway = partial(_oneway, sink, instance, remoting.oneway)
    remoting.exchange = partial(_exchange, sink, instance, remoting.exchange)


async def _request(
    sink: Sink,
    instance: MQClientInstance,
    request: Callable[..., Awaitable[Command]],
    address: str,
    header: Any,  # noqa: ANN401 - of any request
    body: bytes = b"",
    **options: Any,  # noqa: ANN401
) -> Command:
    noted = _note(sink, instance, header, body) if header.code not in IN_FRAMES else []
    command = await request(address, header, body, **options)
    if header.code == RequestCode.LOCK_BATCH_MQ:
        _note_granted(sink, body, command)
    else:
        _note_confirmed(sink, noted, command)
    return command


def _note_confirmed(sink: Sink, noted: list[Event], command: Command) -> None:
    if command.code in STORED:
        for event in noted:
            if number := getattr(event, "number", ""):
                sink.add(events.Confirmed(at=monotonic(), number=number))


async def _oneway(
    sink: Sink,
    instance: MQClientInstance,
    oneway: Callable[..., Awaitable[None]],
    address: str,
    header: Any,  # noqa: ANN401 - of any request
    body: bytes = b"",
    *,
    timeout: float | None = None,
) -> None:
    _note(sink, instance, header, body)
    await oneway(address, header, body, timeout=timeout)


def _note(sink: Sink, instance: MQClientInstance, header: Any, body: bytes) -> list[Event]:  # noqa: ANN401
    """Record what a request asks for."""
    note = _NOTES.get(int(header.code))
    noted = note(sink, instance.client_id, header, body) if note is not None else []
    for event in noted:
        sink.add(event)
    return noted


def _exchange(
    sink: Sink,
    instance: MQClientInstance,
    exchange: Callable[..., Awaitable[Command]],
    address: str,
    code: int,
    frame: Callable[[int], tuple[bytes, bytes]],
    timeout: float,
    on_late: Callable[[Command], None] | None = None,
) -> Awaitable[Command]:
    if code in IN_FRAMES:
        return _exchange_recorded(sink, instance, exchange, address, code, frame, timeout, on_late)
    if code not in SENDS:
        return exchange(address, code, frame, timeout, on_late)

    def recorded(opaque: int) -> tuple[bytes, bytes]:
        made = frame(opaque)
        for uid in _UID_IN_FRAME.findall(made[0] + made[1]):
            if (number := sink.in_flight.get(uid.decode())) is not None:
                sink.add(events.Attempted(at=monotonic(), number=number))
        return made

    return exchange(address, code, recorded, timeout)


async def _exchange_recorded(
    sink: Sink,
    instance: MQClientInstance,
    exchange: Callable[..., Awaitable[Command]],
    address: str,
    code: int,
    frame: Callable[[int], tuple[bytes, bytes]],
    timeout: float,
    on_late: Callable[[Command], None] | None,
) -> Command:
    """Record a request by its frame: prepared ones have no header."""
    noted: list[Event] = []

    def recorded(opaque: int) -> tuple[bytes, bytes]:
        made = frame(opaque)
        if not noted:  # else it is sent again after GO_AWAY
            header = read_header(command_in(b"".join(made)), IN_FRAMES[code])
            noted.extend(_note(sink, instance, header, b""))
        return made

    def late(command: Command) -> None:
        _note_confirmed(sink, noted, command)
        if on_late is not None:
            on_late(command)

    command = await exchange(address, code, recorded, timeout, late)
    _note_confirmed(sink, noted, command)
    return command


def _commit(sink: Sink, consumer: str, header: Any, _body: bytes) -> list[Event]:  # noqa: ANN401
    return [
        events.Commit(
            at=monotonic(),
            number=sink.number(),
            queue=MessageQueue(header.topic, header.broker_name, header.queue_id),
            offset=header.commit_offset,
            group=header.consumer_group,
            consumer=consumer,
        )
    ]


def _sent_back(sink: Sink, _consumer: str, header: Any, _body: bytes) -> list[Event]:  # noqa: ANN401
    return [
        events.SentBack(
            at=monotonic(),
            number=sink.number(),
            group=header.group,
            broker=header.broker_name or "",
            log_offset=header.offset,
            dead=header.delay_level < 0,
        )
    ]


def _copy(sink: Sink, _consumer: str, header: Any, body: bytes) -> list[Event]:  # noqa: ANN401
    """A message that a consumer sends to the retry topic of its group."""
    if not header.topic.startswith(RETRY_PREFIX):
        return []
    uid = parse_properties((header.properties or "").encode()).get(UID)
    return [
        events.SentBack(
            at=monotonic(),
            number=sink.number(),
            group=header.topic.removeprefix(RETRY_PREFIX),
            uid=uid or short_body(body).decode(errors="replace"),
            tries=(header.reconsume_times or 1) - 1,
        )
    ]


def _ack(sink: Sink, consumer: str, header: Any, _body: bytes) -> list[Event]:  # noqa: ANN401
    return [
        events.Acked(
            at=monotonic(),
            number=sink.number(),
            queue=_popped_queue(header),
            offset=header.offset,
            group=header.consumer_group,
            consumer=consumer,
        )
    ]


def _batch_ack(sink: Sink, consumer: str, _header: object, body: bytes) -> list[Event]:
    request = read_body(body, BatchAckRequest)
    return [
        events.Acked(
            at=monotonic(),
            number=sink.number(),
            queue=stored_queue(ack.group, ack.topic, request.broker_name, ack.queue_id, ack.marker),
            offset=ack.start_offset + place,
            group=ack.group,
            consumer=consumer,
        )
        for ack in request.acks
        for place in _places(ack.bits)
    ]


def _invisible(_sink: Sink, consumer: str, header: Any, _body: bytes) -> list[Event]:  # noqa: ANN401
    now = monotonic()
    return [
        events.Hidden(
            at=now,
            queue=_popped_queue(header),
            offset=header.offset,
            group=header.consumer_group,
            consumer=consumer,
            until=now + header.invisible_time / 1000,
        )
    ]


def _unlock(_sink: Sink, _consumer: str, _header: object, body: bytes) -> list[Event]:
    request = read_body(body, LockBatchRequest)
    return [_lock_change(request, asked.queue()) for asked in request.mq_set]


def _note_granted(sink: Sink, body: bytes, command: Command) -> None:
    if command.code == ResponseCode.SUCCESS:
        request = read_body(body, LockBatchRequest)
        granted = {each.queue() for each in read_body(command.body, LockBatchResponse).locked}
        for asked in request.mq_set:
            is_held = asked.queue() in granted
            sink.add(_lock_change(request, asked.queue(), held=is_held, refused=not is_held))


def _lock_change(
    request: LockBatchRequest, queue: MessageQueue, *, held: bool = False, refused: bool = False
) -> Event:
    return events.LockChange(
        at=monotonic(),
        queue=queue,
        group=request.consumer_group,
        consumer=request.client_id,
        held=held,
        refused=refused,
    )


def _end_transaction(sink: Sink, _producer: str, header: Any, _body: bytes) -> list[Event]:  # noqa: ANN401
    return [
        events.TransactionEnded(
            at=monotonic(),
            number=sink.number(),
            message_id=header.msg_id,
            log_offset=header.commit_log_offset,
            state=STATES.get(header.commit_or_rollback, "unknown"),
            checked=header.from_transaction_check,
        )
    ]


def stored_queue(
    group: str, topic: str, broker_name: str, queue_id: int, marker: str
) -> MessageQueue:
    """Return where a popped message is stored: in *topic* or in a retry topic."""
    joint = RETRY_JOINTS.get(marker)
    if joint is not None and not topic.startswith(RETRY_PREFIX):
        topic = f"{RETRY_PREFIX}{group}{joint}{topic}"
    return MessageQueue(topic, broker_name, queue_id)


def _popped_queue(header: Any) -> MessageQueue:  # noqa: ANN401
    receipt = parse_receipt(header.extra_info)
    return stored_queue(
        header.consumer_group, header.topic, receipt.broker_name, receipt.queue_id, receipt.marker
    )


def _places(bits: str) -> list[int]:
    number = int.from_bytes(b64decode(bits), "little")
    return [place for place in range(number.bit_length()) if number >> place & 1]


_NOTES: Final[dict[int, Callable[[Sink, str, Any, bytes], list[Event]]]] = {
    RequestCode.UPDATE_CONSUMER_OFFSET: _commit,
    RequestCode.CONSUMER_SEND_MSG_BACK: _sent_back,
    RequestCode.SEND_MESSAGE_V2: _copy,
    RequestCode.ACK_MESSAGE: _ack,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _invisible,
    RequestCode.UNLOCK_BATCH_MQ: _unlock,
    RequestCode.END_TRANSACTION: _end_transaction,
}
