"""Frames written by the Java classes: decoded and encoded again byte for byte."""

import json
import struct
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from typing import Final

import pytest

from rocketmq_aio.config.client import Credentials
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties, parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import COMPRESSED, LANGUAGE, RequestCode
from rocketmq_aio.protocol.command import encode_command
from rocketmq_aio.protocol.header import RequestHeader, read_header, to_ext_fields, wire_names
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.record import decode_batch, decode_messages, encode_batch_entry
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from rocketmq_aio.protocol.requests.offsets import SearchOffset, UpdateConsumerOffset
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.protocol.requests.send import SendMessage
from rocketmq_aio.protocol.subscription import java_hash
from rocketmq_aio.protocol.templates import RequestTemplate, SendTemplate
from rocketmq_aio.remoting.acl import sign
from tests.unit.protocol.wire_files import Json, command_in, load, said_by_python, split

pytestmark = pytest.mark.usefixtures("each_core")

FRAMES: Final = load("frames/golden/frames.json")["frames"]
RECORDS: Final = load("frames/golden/records.json")["records"]
SIGNATURES: Final = load("frames/golden/signatures.json")["signatures"]
TEXTS: Final = load("frames/golden/texts.json")

HEADERS: Final[dict[int, type[RequestHeader]]] = {
    kind.code: kind
    for kind in (SendMessage, PullMessage, GetRouteInfo, UpdateConsumerOffset, SearchOffset)
}
TYPED: Final = [each for each in FRAMES if each["says"]["code"] in HEADERS]


def frame_id(frame: Json) -> str:
    return f"{frame['serialize']}-{frame['says']['code']}"


def queue_of(expected: Json) -> MessageQueue:
    return MessageQueue(expected["topic"], "broker-a", expected["queueId"])


def message_of(record: Json) -> MessageExt:
    queue = queue_of(record["expect"])
    messages, fault = decode_messages(bytes.fromhex(record["hex"]), queue)
    assert fault is None
    (message,) = messages
    return message


def address(java: str) -> str:
    host, port = java.split(" ")
    ip = ip_address(host)
    return f"[{ip}]:{port}" if isinstance(ip, IPv6Address) else f"{ip}:{port}"


def instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def golden_frame(serialize: str, code: int) -> Json:
    (found,) = (
        each for each in FRAMES if each["serialize"] == serialize and each["says"]["code"] == code
    )
    frame: Json = found
    return frame


@pytest.mark.parametrize("frame", FRAMES, ids=frame_id)
def test_frames_decode_to_the_recorded_values(frame: Json) -> None:
    says = frame["says"]

    command = command_in(bytes.fromhex(frame["hex"]))

    assert command.code == says["code"]
    assert command.opaque == says["opaque"]
    assert command.flag == says["flag"]
    assert command.version == says["version"]
    assert command.remark == says["remark"]
    assert command.ext_fields() == says["ext"]
    assert command.body == bytes.fromhex(says["body_hex"])


@pytest.mark.parametrize("frame", FRAMES, ids=frame_id)
def test_frames_are_encoded_byte_for_byte(frame: Json) -> None:
    original = bytes.fromhex(frame["hex"])
    command = command_in(original)
    binary = frame["serialize"] == "ROCKETMQ"

    written = encode_command(command, command.ext_fields(), binary=binary, version=command.version)

    if binary:
        assert written == said_by_python(original)
    else:
        assert_same_json_frame(written, original)


def assert_same_json_frame(ours: bytes, theirs: bytes) -> None:
    our_encoding, our_header, our_body = split(ours)
    their_encoding, their_header, their_body = split(theirs)
    said = json.loads(their_header)
    if said.get("extFields") is None:
        said["extFields"] = {}

    assert (our_encoding, our_body) == (their_encoding, their_body)
    assert json.loads(our_header) == {**said, "language": LANGUAGE}


@pytest.mark.parametrize("frame", TYPED, ids=frame_id)
def test_a_typed_header_has_the_values_that_were_written(frame: Json) -> None:
    command = command_in(bytes.fromhex(frame["hex"]))
    kind = HEADERS[command.code]
    known = {name for _, name in wire_names(kind)}

    header = read_header(command, kind)

    written = {name: value for name, value in frame["says"]["ext"].items() if name in known}
    assert to_ext_fields(header) == written


def test_a_send_template_matches_the_java_client() -> None:
    golden = command_in(bytes.fromhex(golden_frame("ROCKETMQ", 310)["hex"]))
    header = read_header(golden, SendMessage)
    properties = (header.properties or "").encode()
    numbers = (header.queue_id, header.sys_flag, header.flag)

    head = SendTemplate(header).frame_head(
        golden.opaque, numbers, header.born_timestamp, properties, len(golden.body)
    )

    prepared = command_in(head + golden.body)
    assert prepared.ext_fields() == golden.ext_fields()
    assert (prepared.code, prepared.opaque, prepared.flag) == (310, golden.opaque, 0)
    assert prepared.body == golden.body


def test_a_pull_template_matches_the_java_client() -> None:
    golden = command_in(bytes.fromhex(golden_frame("ROCKETMQ", 11)["hex"]))
    header = read_header(golden, PullMessage)

    frame = RequestTemplate(header, "queueOffset").frame(golden.opaque, str(header.queue_offset))

    prepared = command_in(frame)
    assert prepared.ext_fields() == to_ext_fields(header)
    assert (prepared.code, prepared.opaque, prepared.flag) == (11, golden.opaque, 0)


@pytest.mark.parametrize(
    ("header", "ext"),
    [
        ('{"code":105,"opaque":1}', {}),
        ('{"code":105,"language":"KLINGON","opaque":1}', {}),
        (
            '{"code":105,"opaque":1,"extFields":{"topic":"t","n":5,"b":true}}',
            {"topic": "t", "n": "5", "b": "true"},
        ),
    ],
    ids=["minimal", "unknown language", "values that are not strings"],
)
def test_headers_that_java_peers_accept_are_accepted(header: str, ext: dict[str, str]) -> None:
    length = len(header)
    frame = (4 + length).to_bytes(4, "big") + length.to_bytes(4, "big") + header.encode()

    command = command_in(frame)

    assert (command.code, command.opaque, command.ext_fields()) == (105, 1, ext)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["kind"])
def test_stored_messages_decode_to_the_recorded_values(record: Json) -> None:
    expected = record["expect"]

    message = message_of(record)

    assert message.topic == expected["topic"]
    assert message.body == bytes.fromhex(expected["body_hex"])
    assert message.queue == queue_of(expected)
    assert message.queue_offset == expected["queueOffset"]
    assert message.commit_log_offset == expected["commitLogOffset"]
    assert message.store_size == expected["storeSize"]
    assert message.body_crc == expected["bodyCRC"]
    assert message.flag == expected["flag"]
    assert message.reconsume_times == expected["reconsumeTimes"]
    assert message.prepared_transaction_offset == expected["preparedTransactionOffset"]
    assert message.properties == expected["properties"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["kind"])
def test_flags_times_and_hosts_of_a_stored_message_are_read(record: Json) -> None:
    expected = record["expect"]

    message = message_of(record)

    assert message.sys_flag == record["sysFlag_on_wire"]
    assert message.sys_flag & ~COMPRESSED == expected["sysFlag_after_decode"] & ~COMPRESSED
    assert message.born_time == instant(expected["bornTimestamp"])
    assert message.store_time == instant(expected["storeTimestamp"])
    assert message.born_host == address(expected["bornHost"])
    assert message.store_host == address(expected["storeHost"])


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["kind"])
def test_the_ids_of_a_stored_message_are_those_java_shows(record: Json) -> None:
    message = message_of(record)

    assert message.message_id == record["expect"]["msgId_shown"]
    assert message.offset_message_id == record["expect"]["offsetMsgId"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["kind"])
def test_the_offset_id_is_shown_where_there_is_no_other(record: Json) -> None:
    message = message_of(record)
    message.raw_properties = b""

    assert message.message_id == record["expect"]["offsetMsgId"]


def test_stored_messages_follow_each_other_without_gaps() -> None:
    plain = [each for each in RECORDS if each["expect"]["topic"] == "TopicTest"]
    data = b"".join(bytes.fromhex(each["hex"]) for each in plain)

    messages, fault = decode_messages(data, queue_of(plain[0]["expect"]))

    assert fault is None
    assert [each.body.hex() for each in messages] == [each["expect"]["body_hex"] for each in plain]


@pytest.mark.parametrize("text", ["hello", "", "123456789"])
def test_the_checksum_is_31_bits_of_crc_32(text: str) -> None:
    expected = TEXTS["body_crc"][text or "empty"]

    assert zlib.crc32(text.encode()) & 0x7FFF_FFFF == expected


def test_properties_are_written_as_java_writes_them() -> None:
    given = {
        name: value for name, value in TEXTS["properties"]["input"].items() if value is not None
    }

    assert encode_properties(given).encode().hex() == TEXTS["properties"]["encoded_hex"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A\x011\x02B\x01\x02D\x01x=y\x02", "decoded"),
        ("A\x011\x02D\x01z", "decode_without_trailing_separator"),
        ("K\x011\x02K\x012\x02", "decode_duplicate_key"),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, name: str) -> None:
    assert parse_properties(text.encode()) == TEXTS["properties"][name]


@pytest.fixture
def golden_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", TEXTS["uniq_key"]["timezone"])
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("golden_time_zone")
def test_message_ids_match_java() -> None:
    golden = TEXTS["uniq_key"]
    host = IPv6Address(golden["ip"]).packed
    process, salt = struct.unpack_from(">HI", bytes.fromhex(golden["sample1"]), len(host))
    generator = MessageIdGenerator(host, process, salt)

    made = [generator.next_id(golden["time_ms_from_id"]) for _ in range(2)]

    assert made == [golden["sample1"], golden["sample2"]]


@pytest.mark.parametrize(("text", "expected"), TEXTS["string_hash_codes"].items())
def test_hash_codes_match_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_batches_decode_to_the_recorded_values() -> None:
    batch = TEXTS["batch"]

    entries = list(decode_batch(bytes.fromhex(batch["hex"])))

    assert [
        (flag, body.decode(), parse_properties(properties)) for flag, body, properties in entries
    ] == [(each["flag"], each["body"], each["properties"]) for each in batch["entries"]]


def test_batches_are_encoded_byte_for_byte() -> None:
    batch = TEXTS["batch"]
    entries = decode_batch(bytes.fromhex(batch["hex"]))

    written = [
        b"".join(encode_batch_entry(body, properties, flag)) for flag, body, properties in entries
    ]

    assert [each.hex() for each in written] == [each["entry_hex"] for each in batch["entries"]]
    assert b"".join(written).hex() == batch["hex"]


@pytest.mark.parametrize(
    "signature",
    SIGNATURES,
    ids=lambda each: f"{each['code']}-{each['securityToken']}-{bool(each['body_hex'])}",
)
def test_signatures_match_java(signature: Json) -> None:
    account = ("AccessKey", "SecurityToken")
    signed = signature["extFields_before_signature"]
    ext = {name: value for name, value in signed.items() if name not in account}
    credentials = Credentials(
        access_key=signature["accessKey"],
        secret_key=signature["secretKey"],
        security_token=signature["securityToken"],
    )

    sign(ext, bytes.fromhex(signature["body_hex"] or ""), credentials)

    assert ext == {**signed, "Signature": signature["Signature"]}


def test_the_numbers_of_the_golden_frames_are_requests_in_use() -> None:
    used = {each["says"]["code"] for each in FRAMES} & set(RequestCode)

    assert {11, 15, 29, 34, 105, 310} <= used
