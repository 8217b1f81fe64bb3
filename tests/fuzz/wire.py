"""Targets: frames, headers, bodies, records and texts of the remoting protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec

from rocketmq_aio.admin.messages import read_offset_id
from rocketmq_aio.admin.offset_search import records, store_times
from rocketmq_aio.admin.results import describe_message
from rocketmq_aio.consumer.offsets.local_file import decode_offsets, encode_offsets
from rocketmq_aio.core import core
from rocketmq_aio.errors import CodecError, ConfigError
from rocketmq_aio.instance.routes import read_route as topic_route
from rocketmq_aio.model.address import parse_address, parse_addresses, vip_address
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties, find_property, parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import (
    Body,
    TopicRouteData,
    queue_key,
    read_reset_offsets,
    read_route,
)
from rocketmq_aio.protocol.codes import COMPRESSED, COMPRESSION_BITS
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.compression import InflationLimitError, compress, inflate
from rocketmq_aio.protocol.decoding import verifying
from rocketmq_aio.protocol.fastjson import read_body, to_standard
from rocketmq_aio.protocol.frame import PREFIX, FrameDecoder
from rocketmq_aio.protocol.header import Header, read_header, to_ext_fields
from rocketmq_aio.protocol.namespaces import JSON_BODIES, Namespace
from rocketmq_aio.protocol.receipt import (
    Receipt,
    batch_acks,
    fits_batch,
    order_count,
    parse_receipt,
    read_info,
    receipts,
    with_receipts,
)
from rocketmq_aio.protocol.record import (
    decode_batch,
    decode_message,
    decode_messages,
    encode_batch_entry,
    stored_message,
)
from rocketmq_aio.protocol.requests.pop import PopMessageResponse
from rocketmq_aio.remoting.response_errors import broker_error, is_about_account
from tests.fuzz.corpus import BODIES, FRAMES, HEADERS, RECORDS, valid_body, valid_header
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import (
    Signature,
    Target,
    after_name,
    any_bytes,
    any_json,
    check_error,
    kind_of,
    number_of,
    outcome,
)
from tests.unit.cores import decoded, using
from tests.unit.protocol.wire_files import command_in, load, split
from tests.unit.stored import INNER, batch_entry

MAX_FRAME: Final = 1024 * 1024
MAX_INFLATED: Final = 256 * 1024
GENERATED: Final = 300
LONG: Final = 2**63 - 1
QUEUE: Final = MessageQueue("TopicTest", "broker-a", 3)
TOPICS: Final = ("TopicTest", "orders")
NAMESPACE: Final = Namespace("ns")
NAMESPACE_CODES: Final = sorted(JSON_BODIES)
ACCESSORS: Final = tuple(
    name for name, member in vars(MessageExt).items() if type(member).__name__ == "property"
)


# --- frames ---------------------------------------------------------------------------------------


def frame_seeds(random: Random) -> list[bytes]:
    joined = [b"".join(random.sample(FRAMES, 2)) for _ in range(30)]
    return [*FRAMES, *joined]


def _frames_of(chunks: Sequence[bytes]) -> tuple[list[tuple[int, bytes, bytes]], str]:
    found: list[tuple[int, bytes, bytes]] = []
    decoder = FrameDecoder(lambda *parts: found.append(parts), max_frame_bytes=MAX_FRAME)
    for chunk in chunks:
        error = outcome(decoder.feed, chunk)
        if error is not None:
            return found, str(error)
    consumed = sum(8 + len(header) + len(body) for _, header, body in found)
    assert decoder.position == consumed
    assert decoder.has_unfinished == (consumed < sum(map(len, chunks)))
    return found, "unfinished" if decoder.has_unfinished else ""


def check_frames(data: bytes) -> Signature:
    whole = _frames_of([data])
    step = 1 + number_of(data, min(max(1, len(data)), 64))
    assert _frames_of([data[at : at + step] for at in range(0, len(data), step)]) == whole
    cut = number_of(data[::-1], len(data) + 1)
    assert _frames_of([data[:cut], data[cut:]]) == whole
    frames, end = whole
    again = b"".join(
        PREFIX.pack(4 + len(header) + len(body), encoding << 24 | len(header)) + header + body
        for encoding, header, body in frames
    )
    assert data.startswith(again)
    kinds = [kind_of(outcome(decode_command, *each)) for each in frames[:2]]
    return len(frames), end[:12], *kinds


# --- headers --------------------------------------------------------------------------------------


def header_seeds(random: Random) -> list[bytes]:
    found = {bytes([encoding]) + header for encoding, header, _ in map(split, FRAMES)}
    for _ in range(GENERATED):
        ext = to_ext_fields(valid_header(random))
        binary = random.random() < 0.5
        frame = encode_command(Command(random.choice((11, 0, 310)), 7, 1), ext, binary=binary)
        encoding, header, _ = split(frame)
        found.add(bytes([encoding]) + header)
    return sorted(found)


def check_header(data: bytes) -> Signature:
    command = outcome(decode_command, data[0] if data else 0, data[1:], b"")
    if isinstance(command, Exception):
        return kind_of(command)
    names = list(HEADERS)
    kinds = [names[number_of(data, len(names))], names[number_of(data[1:], len(names))]]
    read = [outcome(read_header, command, HEADERS[name]) for name in kinds]
    for each in read:
        if isinstance(each, Header):
            check_header_round_trip(each)
    fields = outcome(command.ext_fields)
    if isinstance(fields, Exception):
        return kind_of(fields), *map(kind_of, read)
    for binary in (False, True):
        check_command_round_trip(command, fields, binary=binary)
    error = broker_error(command, "127.0.0.1:10911")
    check_error(error)
    return len(fields), command.remark is None, is_about_account(error), *map(kind_of, read)


def check_command_round_trip(command: Command, fields: dict[str, str], *, binary: bool) -> None:
    frame = outcome(encode_command, command, fields, binary=binary)
    if isinstance(frame, Exception):
        return
    again = decode_command(*split(frame))
    assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
    assert (again.remark or "") == (command.remark or "")
    kept = {name: value for name, value in fields.items() if value}
    assert {n: v for n, v in again.ext_fields().items() if v} == kept


def check_header_round_trip(header: Header) -> None:
    fields = to_ext_fields(header)
    assert read_header(Command(0, 0, ext=fields), type(header)) == header
    raw = msgspec.Raw(msgspec.json.encode(fields))
    assert read_header(Command(0, 0, ext=raw), type(header)) == header


def typed_header_seeds(random: Random) -> list[bytes]:
    made = [valid_header(random) for _ in range(2 * GENERATED)]
    for each in made:
        check_header_round_trip(each)
    return [
        type(each).__name__.encode() + b"\n" + msgspec.json.encode(to_ext_fields(each))
        for each in made
    ]


def check_typed_header(data: bytes) -> Signature:
    name, _, text = data.partition(b"\n")
    kind = HEADERS[name.decode()]
    raw = Command(0, 0, ext=msgspec.Raw(text))
    read = outcome(read_header, raw, kind)
    if isinstance(read, Header):
        check_header_round_trip(read)
    fields = outcome(raw.ext_fields)
    if not isinstance(fields, Exception) and isinstance(read, Header):
        plain = outcome(read_header, Command(0, 0, ext=fields), kind)
        assert isinstance(plain, Header), f"text fields are refused: {plain}"
    return name, kind_of(read)


# --- bodies ---------------------------------------------------------------------------------------


NOT_FINITE: Final = re.compile(r"[=:\[,] ?-?(?:nan|inf)\b")  # in the text of a body


def body_seeds(random: Random) -> list[bytes]:
    made = [valid_body(random) for _ in range(2 * GENERATED)]
    found = [type(each).__name__.encode() + b"\n" + msgspec.json.encode(each) for each in made]
    recorded = {body for body in (command_in(each).body for each in FRAMES) if body[:1] == b"{"}
    names = list(BODIES)
    for body in sorted(recorded):
        fit = [n for n in names if not isinstance(outcome(read_body, body, BODIES[n]), Exception)]
        found += [name.encode() + b"\n" + body for name in fit[:8]]
    return found


def check_body(data: bytes) -> Signature:
    name, _, text = data.partition(b"\n")
    kind = BODIES[name.decode()]
    value = outcome(read_body, text, kind)
    standard = outcome(to_standard, text)
    if isinstance(standard, bytes):
        assert outcome(to_standard, standard) == standard
    check_namespace(text)
    if isinstance(value, Exception):
        return name, kind_of(value), kind_of(standard)
    check_body_round_trip(value)
    if isinstance(value, TopicRouteData):
        return name, kind_of(check_route(text))
    return name, kind_of(standard), number_of(bytes(repr(standard)[:1], "utf-8"), 4)


def check_body_round_trip(value: Body) -> None:
    if NOT_FINITE.search(repr(value)):
        return  # numbers as text may be "NaN", as in Java; JSON has no such number
    text = msgspec.json.encode(value)
    again = read_body(text, type(value))
    assert msgspec.json.encode(again) == text


def check_route(text: bytes) -> object:
    data = outcome(read_route, text)
    if isinstance(data, TopicRouteData):
        route = topic_route("TopicTest", data)
        for addresses in route.brokers.values():
            for address in addresses.values():
                vip_address(address)
    return data


def check_namespace(text: bytes) -> None:
    """Check that names are converted, or the body stays as it is for its reader to complain."""
    code = NAMESPACE_CODES[number_of(text, len(NAMESPACE_CODES))]
    if number_of(text, 2):
        NAMESPACE.response(code, Command(0, 0, body=text))
    else:
        NAMESPACE.outer_json(code, text)


def offset_seeds(random: Random) -> list[bytes]:
    made = [
        {MessageQueue(random.choice(TOPICS), "b", n): n * 7 for n in range(random.randrange(4))}
        for _ in range(40)
    ]
    listed = [encode_offsets(each) for each in made]
    keyed = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}'
    plain = b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"t\\"}":9}}'
    return [*listed, keyed, plain]


def check_offsets(data: bytes) -> Signature:
    table = outcome(read_reset_offsets, data)
    stored = outcome(decode_offsets, data)
    if not isinstance(stored, Exception):
        assert stored == table
        assert decode_offsets(encode_offsets(stored)) == stored
    outcome(queue_key, data.decode("utf-8", "replace"))
    return kind_of(table), kind_of(stored), len(table) if isinstance(table, dict) else 0


# --- messages -------------------------------------------------------------------------------------

# Fixed numbers of a record and their sizes: size, magic, crc, queue, flag, offsets, sysFlag ...
NUMBERS: Final = (
    *((0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 8), (28, 8), (36, 4), (36, 4), (40, 8)),
    *((52, 4), (56, 8), (68, 4), (72, 4), (76, 8), (84, 4), (84, 4), (88, 1), (88, 2)),
)


NO_TABLES: Final = PopMessageResponse(pop_time=0, invisible_time=0, revive_queue_id=0, rest_num=0)


def record_seeds(random: Random) -> list[bytes]:
    del random
    return RECORDS


def mutated_record(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
    random = mutator.random
    choice = random.random()
    if choice < 0.4:
        data = mutator.change_number(data, NUMBERS)
    elif choice < 0.5:  # a record in which the mutated one is the second
        data = random.choice(RECORDS) + mutator.change_number(data, NUMBERS)
    elif choice < 0.6 and len(data) > 100:  # the size follows what is inside
        middle = mutator.change(data[4:], others)
        data = (4 + len(middle)).to_bytes(4, "big") + middle
    else:
        data = mutator.change(data, others)
    return data


def check_records(data: bytes) -> Signature:
    queue = MessageQueue(TOPICS[number_of(data, 2)], "broker-a", 3)
    messages, fault = decode_messages(data, queue, limit=MAX_INFLATED)
    if core is not None:
        with using(None):
            reference = decode_messages(data, queue, limit=MAX_INFLATED)
        assert decoded((messages, fault)) == decoded(reference)
    if fault is not None:
        assert isinstance(fault, CodecError)
        check_error(fault)
        assert 0 <= fault.position <= len(data)
    alone = sum(each.store_size for each in messages if each.sys_flag & INNER != INNER)
    assert alone <= (len(data) if fault is None else fault.position)
    for message in messages[:3]:
        check_message(message, queue)
    limit = MAX_INFLATED + 1024 * len(messages)
    assert sum(len(each.body) for each in messages) <= limit + len(data)
    if fault is None and number_of(data, 4) == 0:
        twice, second = decode_messages(data + data, queue, limit=4 * MAX_INFLATED)
        assert second is not None or len(twice) == 2 * len(messages)
    single = outcome(decode_message, data, "broker-a")
    if number_of(data, 3) == 0:
        verifying(decode_messages)(data, queue, limit=MAX_INFLATED)
        NAMESPACE.decode(data, queue, limit=MAX_INFLATED)
    stored = outcome(stored_message, data, "broker-a")
    if isinstance(stored, MessageExt):
        NAMESPACE.received(stored)
        outcome(lambda: list(store_times(stored, 0)))
    outcome(lambda: list(records(data)))
    renamed = outcome(with_receipts, data, NO_TABLES, "t", {"1": queue.topic}, "broker-a")
    if messages and fault is None and isinstance(renamed, bytes):
        again, second = decode_messages(
            renamed, MessageQueue("t", "broker-a", 3), limit=MAX_INFLATED
        )
        assert second is None
        assert [each.body for each in again] == [each.body for each in messages]
    return len(messages), kind_of(fault), kind_of(single), kind_of(stored)


def check_message(message: MessageExt, queue: MessageQueue) -> None:
    assert message.topic == queue.topic
    assert message.queue == queue
    assert repr(message)
    for name in ACCESSORS:
        outcome(getattr, message, name)
    outcome(describe_message, message)


def batch_seeds(random: Random) -> list[bytes]:
    made = [
        b"".join(
            batch_entry(b"x" * random.randrange(20), b"A\x01b\x02" * random.randrange(2), n)
            for n in range(random.randrange(5))
        )
        for _ in range(40)
    ]
    return [*made, bytes.fromhex(load("frames/golden/texts.json")["batch"]["hex"])]


def check_batch(data: bytes) -> Signature:
    entries = outcome(lambda: list(decode_batch(data)))
    if isinstance(entries, Exception):
        return kind_of(entries)
    encoded = [encode_batch_entry(body, properties, flag) for flag, body, properties in entries]
    again = b"".join(part for parts in encoded for part in parts)
    assert list(decode_batch(again)) == entries
    assert len(again) == len(data)
    return min(len(entries), 10)


def compressed_seeds(random: Random) -> list[bytes]:
    found = [b"\x03" + compress(b"zlib without type bits" * 9, "zlib", 5)]
    for kind, bits in COMPRESSION_BITS.items():
        for size in (0, 1, 100, 5000):
            body = random.randbytes(size // 10) * 10
            found.append(bytes([bits >> 8]) + compress(body, kind, 3))
            assert inflate(compress(body, kind, 3), bits, limit=max(1, len(body))) == body
    return found


def check_compressed(data: bytes) -> Signature:
    bits = (data[0] if data else 0) << 8
    inflated = outcome(inflate, data[1:], bits | COMPRESSED, limit=MAX_INFLATED)
    if not isinstance(inflated, bytes):
        return kind_of(inflated), bits & 0x700
    assert len(inflated) <= MAX_INFLATED
    if inflated:
        small = outcome(inflate, data[1:], bits, limit=len(inflated) - 1)
        assert isinstance(small, InflationLimitError)
    return bits & 0x700, len(inflated) > 0


# --- texts ----------------------------------------------------------------------------------------


def property_seeds(random: Random) -> list[bytes]:
    names = ("A", "B", "TAGS", "KEYS", "é", "AB", "UNIQ_KEY")
    made = []
    for _ in range(60):
        table = {random.choice(names): random.choice(("1", "x=y", "a b", "中")) for _ in range(4)}
        raw = encode_properties(table).encode()
        assert parse_properties(raw) == table == parse_properties(raw.removesuffix(b"\x02"))
        made.append(raw)
    return made


def check_properties(data: bytes) -> Signature:
    table = parse_properties(data)
    assert all(table.keys())
    assert all(table.values())
    for name in ("A", "B", "TAGS", "AB", "missing", *list(table)[:2]):
        if "\ufffd" not in name:  # invalid UTF-8 was replaced
            assert find_property(data, name.encode() + b"\x01") == table.get(name)
    encoded = encode_properties(table).encode()
    assert parse_properties(encoded) == table
    return min(len(table), 6), b"\xff" in data


def receipt_seeds(random: Random) -> list[bytes]:
    del random
    texts = load("frames/golden/texts.json")["receipts"]
    return [
        *[texts[name].encode() for name in ("eight_fields", "retry_v2", "seven_fields")],
        str(Receipt(100, 1_700_000_000_000, 60_000, 3, "0", "broker-a", 2, 105)).encode(),
        str(Receipt(0, 1, 1, 999, "1", "b c", 0, 2**63 - 1)).encode(),
    ]


def check_receipt(data: bytes) -> Signature:
    read = outcome(parse_receipt, data.decode("utf-8", "replace"))
    if isinstance(read, Exception):
        return kind_of(read)
    assert parse_receipt(str(read)) == read
    if fits_batch(read):
        acks = msgspec.json.encode(batch_acks("group", [("topic", read)]))
        assert len(acks) < 6 * len(data) + 4096  # JSON writes \u0000 for a byte
    for number in (read.start_offset, read.pop_time, read.offset, read.queue_id):
        assert -(2**63) <= number < 2**63, "Java reads a long"
    return fits_batch(read), read.marker, read.is_ordered


def pop_info_seeds(random: Random) -> list[bytes]:
    del random
    infos = [
        ("0 1 100;1 0 7", "0 1 100,101,103;1 0 7", "0 1 2;0 qo1%100 1"),
        ("0 3 7", "0 3 7", None),
        (None, None, None),
    ]
    fields = ("startOffsetInfo", "msgOffsetInfo", "orderCountInfo")
    return [
        msgspec.json.encode(
            {
                "popTime": "1700000000000",
                "invisibleTime": "60000",
                "reviveQid": "3",
                "restNum": "0",
                **{name: text for name, text in zip(fields, info, strict=True) if text},
            }
        )
        for info in infos
    ]


POPPED: Final = decode_messages(
    b"".join(each for each in RECORDS if decode_messages(each, QUEUE)[1] is None), QUEUE
)[0][:4]


def check_pop_info(data: bytes) -> Signature:
    response = outcome(read_header, Command(0, 0, ext=msgspec.Raw(data)), PopMessageResponse)
    if isinstance(response, Exception):
        return kind_of(response)
    info = outcome(read_info, response)
    made = outcome(receipts, POPPED, response, "broker-a")
    if isinstance(made, list):
        assert len(made) == len(POPPED)
        for receipt in made:
            numbers = response.invisible_time, response.revive_queue_id, response.pop_time
            if all(-LONG <= number <= LONG for number in numbers):
                assert parse_receipt(str(receipt)) == receipt
            if not isinstance(info, Exception):
                order_count(info, receipt)
    return kind_of(info), kind_of(made)


def id_seeds(random: Random) -> list[bytes]:
    del random
    return [
        text.encode()
        for text in load("frames/golden/texts.json")["message_ids"].values()
        if isinstance(text, str)
    ]


def check_id(data: bytes) -> Signature:
    read = outcome(read_offset_id, data.decode("utf-8", "replace"), error=ConfigError)
    if isinstance(read, Exception):
        return kind_of(read)
    address, offset = read
    host, port = parse_address(address)
    assert offset < 2**63
    return ":" in host, port > 1024


def address_seeds(random: Random) -> list[bytes]:
    del random
    return [b"127.0.0.1:9876", b"[::1]:9876", b"a.b:1;c:2", b"::1:9876", b"http://x/y", b"h:65535"]


def check_address(data: bytes) -> Signature:
    text = data.decode("utf-8", "replace")
    parsed = outcome(parse_address, text, error=ConfigError)
    if not isinstance(parsed, Exception):
        vip_address(text)
    return kind_of(parsed), kind_of(outcome(parse_addresses, text, error=ConfigError))


json_after_name: Any = after_name(any_json)

WIRE: Final = (
    Target(name="frames", seeds=frame_seeds, mutate=any_bytes, check=check_frames),
    Target(name="headers", seeds=header_seeds, mutate=any_bytes, check=check_header),
    Target(
        name="typed-headers",
        seeds=typed_header_seeds,
        mutate=json_after_name,
        check=check_typed_header,
    ),
    Target(name="bodies", seeds=body_seeds, mutate=json_after_name, check=check_body),
    Target(name="offsets", seeds=offset_seeds, mutate=any_json, check=check_offsets),
    Target(
        name="records", seeds=record_seeds, mutate=mutated_record, check=check_records, grows=20_000
    ),
    Target(name="batches", seeds=batch_seeds, mutate=any_bytes, check=check_batch),
    Target(
        name="compressed",
        seeds=compressed_seeds,
        mutate=any_bytes,
        check=check_compressed,
        weight=4,
        grows=20_000,
    ),
    Target(name="properties", seeds=property_seeds, mutate=any_bytes, check=check_properties),
    Target(name="receipts", seeds=receipt_seeds, mutate=any_bytes, check=check_receipt),
    Target(name="pop-info", seeds=pop_info_seeds, mutate=any_json, check=check_pop_info),
    Target(name="message-ids", seeds=id_seeds, mutate=any_bytes, check=check_id, weight=5),
    Target(name="addresses", seeds=address_seeds, mutate=any_bytes, check=check_address, weight=5),
)
