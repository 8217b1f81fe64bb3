"""Typed headers: ext fields of requests and responses, declared as structs.

Field names are snake_case here and camelCase on the wire; values are text on the wire.
"""

from __future__ import annotations

import re
from functools import cache
from typing import ClassVar, Final, TypedDict, TypeVar, get_args

import msgspec
import msgspec.structs

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import READ_ERRORS, json_decoder

H = TypeVar("H", bound=msgspec.Struct)

SIGNED_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,20}")  # Java accepts leading zeros and a plus


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all typed headers; fields that are None are omitted."""


class RequestHeader(Header, frozen=True, kw_only=True):
    """Base of the headers of requests; *code* is the request code."""

    code: ClassVar[int]
    unsigned: ClassVar[tuple[str, ...]] = ()  # fields that are not signed


def bare_request(number: int, module: str) -> type[RequestHeader]:
    """Return the header of request *number* of *module*; it has no fields."""

    class BareRequest(RequestHeader, frozen=True, kw_only=True):
        __module__ = module
        code = number

    return BareRequest


class TopicRequest(RequestHeader, frozen=True, kw_only=True):
    """Base of the requests about one topic."""

    topic: str


class QueueRequest(TopicRequest, frozen=True, kw_only=True):
    """Base of the requests about one queue."""

    queue_id: int
    broker_name: str | None = msgspec.field(name="bname", default=None)


class GroupQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """Base of the requests of a consumer group about one queue."""

    consumer_group: str


class QueueFields(TypedDict):
    """The fields of a `QueueRequest`."""

    topic: str
    queue_id: int
    broker_name: str


def queue_fields(queue: MessageQueue) -> QueueFields:
    """Return the fields that say which queue a request is about."""
    return {"topic": queue.topic, "queue_id": queue.queue_id, "broker_name": queue.broker_name}


@cache
def wire_names(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    """Return (attribute, wire name) of every field."""
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


def to_ext_fields(header: Header) -> dict[str, str]:
    """Return *header* as ext fields."""
    fields: dict[str, str] = {}
    for attribute, name in wire_names(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if value is True or value is False:
            fields[name] = "true" if value else "false"
        else:
            # str() of a member of a string enum can be its name
            fields[name] = str.__str__(value) if isinstance(value, str) else str(value)
    return fields


def read_header(command: Command, kind: type[H]) -> H:
    """Return the ext fields of *command* as *kind*.

    An optional field with an invalid value counts as missing, as in Java.

    :raises CodecError: a required field is missing or invalid
    """
    ext = command.ext
    decoder: msgspec.json.Decoder[H] = json_decoder(kind)  # before `convert`, which makes one
    try:
        if isinstance(ext, msgspec.Raw):
            return decoder.decode(ext)
        return msgspec.convert(ext or {}, kind, strict=False)
    except READ_ERRORS:
        return _read_leniently(command, kind)


def _read_leniently(command: Command, kind: type[H]) -> H:
    # Not on the hot path. Java peers write "" for an unknown number, and read it as absent.
    present = dict(command.ext_fields())
    for field in msgspec.structs.fields(kind):
        text = present.get(field.encode_name)
        if text is None or _fits(text, field.type):
            continue
        digits = text.strip()
        if int in (field.type, *get_args(field.type)) and SIGNED_DIGITS.fullmatch(digits):
            present[field.encode_name] = str(int(digits))
        elif not field.required:
            del present[field.encode_name]
    try:
        return msgspec.convert(present, kind, strict=False)
    except msgspec.MsgspecError as error:
        raise CodecError(f"{kind.__name__} of code {command.code}", 8, str(error)) from error


def _fits(text: str, kind: object) -> bool:
    try:
        msgspec.convert(text, kind, strict=False)
    except msgspec.MsgspecError:
        return False
    return True
