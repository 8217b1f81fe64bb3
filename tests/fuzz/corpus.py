"""Seeds: the golden vectors and recorded exchanges of protocol/, and generated valid values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import Enum
from functools import cache
from random import Random
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from rocketmq_aio.protocol import bodies
from rocketmq_aio.protocol.bodies import Body, queue_table
from rocketmq_aio.protocol.codes import COMPRESSED, COMPRESSION_BITS
from rocketmq_aio.protocol.compression import compress
from rocketmq_aio.protocol.header import Header
from tests.unit.protocol.declared import all_headers
from tests.unit.protocol.wire_files import RECORDED, command_in, load
from tests.unit.stored import BORN_IPV6, INNER, MAGIC_V2, STORE_IPV6, Stored, batch_entry

T = TypeVar("T")

TEXTS: Final = (
    "TopicTest",
    "broker-a",
    "0",
    "é中😀",
    "%RETRY%g",
    "a b",
    "1700000000000",
    "{}",
    "\n",
)
NUMBERS: Final = (0, 1, 7, -1, 120, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63))
FLOATS: Final = (0.0, 1.5, -2.25, 1e300)
QUEUE_KEY: Final = '{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}'
# Keys of these tables are queues as JSON.
QUEUE_TABLES: Final = frozenset({"offset_table", "mq_table", "mq_pop_table", "message_queue_table"})


def subclasses(kind: type[T]) -> Iterator[type[T]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def _frames() -> list[bytes]:
    found = {
        bytes.fromhex(exchange[half]["hex"])
        for recorded in RECORDED.values()
        for exchange in recorded["exchanges"]
        for half in ("request", "response")
        if exchange.get(half)
    }
    found |= {bytes.fromhex(each["hex"]) for each in load("frames/golden/frames.json")["frames"]}
    return sorted(found)


FRAMES: Final = _frames()
HEADERS: Final = {kind.__name__: kind for kind in all_headers() if kind.__struct_fields__}
BODIES: Final[dict[str, type[Body]]] = {kind.__name__: kind for kind in subclasses(bodies.Body)}


def _records() -> list[bytes]:
    found = [bytes.fromhex(each["hex"]) for each in load("frames/golden/records.json")["records"]]
    found += [command_in(bytes.fromhex(each["hex"])).body for each in _pulls()]
    body = b"".join(batch_entry(b"one", b"TAGS\x01a\x02") for _ in range(3))
    made = [
        Stored(),
        Stored(body=b""),
        Stored(properties=b""),
        Stored(sys_flag=BORN_IPV6),
        Stored(sys_flag=STORE_IPV6),
        Stored(sys_flag=BORN_IPV6 | STORE_IPV6, magic=MAGIC_V2),
        Stored(topic=b"%RETRY%" + b"g" * 200, magic=MAGIC_V2),
        Stored(body=body, sys_flag=INNER),
        Stored(body=zlib.compress(body), sys_flag=INNER | COMPRESSED),
        *(
            Stored(body=compress(b"body " * 50, kind, 3), sys_flag=COMPRESSED | bits)
            for kind, bits in COMPRESSION_BITS.items()
        ),
    ]
    return found + [each.to_bytes() for each in made]


def _pulls() -> list[dict[str, Any]]:
    return [each for each in load("frames/pulled.json")["pulls"] if "hex" in each]


RECORDS: Final = _records()


@cache
def fields_of(kind: type[msgspec.Struct]) -> list[tuple[str, str, Any, bool]]:
    """Return attribute, wire name, type and whether it is required, of every field."""
    types = get_type_hints(kind)
    return [
        (each.name, each.encode_name, types[each.name], each.required)
        for each in msgspec.structs.fields(kind)
    ]


def valid(kind: Any, random: Random, name: str = "") -> Any:  # noqa: ANN401, C901 - by type
    """Return a random valid value of type *kind*, of field *name*."""
    if get_origin(kind) in (Union, UnionType):
        return valid(random.choice(get_args(kind)), random, name)
    if kind is type(None):
        return None
    if kind is bool:
        return random.random() < 0.5
    if kind is int:
        return random.choice(NUMBERS)
    if kind is float:
        return random.choice(FLOATS)
    if kind is str:
        return random.choice(TEXTS)
    if kind is msgspec.Raw:
        return _raw(random, name)
    if get_origin(kind) is list:
        return [valid(get_args(kind)[0], random) for _ in range(random.randrange(3))]
    if get_origin(kind) is dict:
        return _table(kind, random, name)
    if issubclass(kind, Enum):
        return random.choice(list(kind))
    assert issubclass(kind, msgspec.Struct), kind
    return kind(
        **{
            attribute: valid(each, random, attribute)
            for attribute, _, each, required in fields_of(kind)
            if required or random.random() < 0.8
        }
    )


def _raw(random: Random, name: str) -> msgspec.Raw:
    if name in QUEUE_TABLES and random.random() < 0.8:
        queue = valid(bodies.MessageQueueBody, random).queue()
        return queue_table({queue: random.choice(NUMBERS)})
    return msgspec.Raw(b'{"a":[1,{"b":"c"}]}')


def _table(kind: Any, random: Random, name: str) -> dict[Any, Any]:  # noqa: ANN401
    of_key, of_value = get_args(kind)
    table: dict[Any, Any] = {}
    for _ in range(random.randrange(3)):
        key = valid(of_key, random)
        if name in QUEUE_TABLES:
            key = msgspec.json.encode(valid(bodies.MessageQueueBody, random)).decode()
        table[key] = 1 if of_value is Any else valid(of_value, random, name)
    return table


def valid_header(random: Random) -> Header:
    header: Header = valid(random.choice(list(HEADERS.values())), random)
    return header


def valid_body(random: Random) -> Body:
    body: Body = valid(random.choice(list(BODIES.values())), random)
    return body
