"""Inputs that fuzzing found: each raised an undocumented error, or an unsafe text."""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import lz4.frame
import msgspec
import pytest
import zstandard

from rocketmq_aio.admin.offset_search import store_times
from rocketmq_aio.consumer.offsets.local_file import decode_offsets
from rocketmq_aio.embedded.broker.filters import FilterError, compile_sql
from rocketmq_aio.embedded.broker.store import NewMessage
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.snapshot import SnapshotError, load_snapshot, save_snapshot
from rocketmq_aio.errors import (
    BrokerError,
    CodecError,
    ConfigError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.model.errors import REMARK_SHOWN
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumeDirectlyResult
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.compression import inflate
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.receipt import parse_receipt, read_info
from rocketmq_aio.protocol.record import decode_messages, stored_message
from rocketmq_aio.protocol.replies import reply_message
from rocketmq_aio.protocol.requests.from_broker import PushReplyMessage
from rocketmq_aio.protocol.requests.offsets import OffsetResponse
from rocketmq_aio.protocol.requests.pop import PopMessageResponse
from rocketmq_aio.remoting.inbound_requests import error_reply, reply_frame
from rocketmq_aio.spark.options.values import offsets
from tests.unit.costs import peak_bytes
from tests.unit.protocol.test_replies import PUSHED
from tests.unit.protocol.wire_files import split
from tests.unit.stored import Stored

pytestmark = pytest.mark.usefixtures("each_core")

FORGED = "x\n2026-01-01 ERROR forged\x1b[2J"


def test_a_codec_error_that_quotes_names_is_one_printable_line() -> None:
    table = {"offsetTable": [{"topic": FORGED, "brokerName": "b", "queueId": 1, "offset": -1}]}

    with pytest.raises(CodecError) as raised:
        decode_offsets(msgspec.json.encode(table))

    assert str(raised.value).isprintable()
    assert "forged" in raised.value.reason


def test_a_codec_error_that_quotes_an_enum_value_is_one_printable_line() -> None:
    with pytest.raises(CodecError) as raised:
        read_body(msgspec.json.encode({"consumeResult": FORGED}), ConsumeDirectlyResult)

    assert str(raised.value).isprintable()


def test_a_codec_error_is_short() -> None:
    with pytest.raises(CodecError) as raised:
        parse_receipt("x" * 100_000)

    assert len(str(raised.value)) < 2 * REMARK_SHOWN
    assert len(raised.value.reason) > 100_000


@pytest.mark.parametrize(
    "error",
    [
        NotConnectedError(FORGED, FORGED),
        ConnectionLostError(FORGED, 11, FORGED),
        RequestTimeoutError(FORGED, 11, 3),
        BrokerError(1, FORGED, FORGED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_names_a_broker_is_one_printable_line(error: RocketMQError) -> None:
    assert str(error).isprintable()


@pytest.mark.parametrize(
    "number", ["9223372036854775808", "-9223372036854775809", "1_0", "１", "9" * 30]
)
@pytest.mark.parametrize("place", [0, 1, 2, 3, 6, 7])
def test_a_receipt_has_numbers_of_64_bits(number: str, place: int) -> None:
    parts = list(map(str, "100 1700000000000 60000 3 0 broker-a 2 105".split(" ")))
    parts[place] = number

    with pytest.raises(CodecError, match="receipt"):
        parse_receipt(" ".join(parts))


@pytest.mark.parametrize("table", ["start_offset_info", "msg_offset_info", "order_count_info"])
def test_the_tables_of_a_pop_have_numbers_of_64_bits(table: str) -> None:
    response = PopMessageResponse(
        pop_time=1, invisible_time=1, revive_queue_id=1, rest_num=0, **{table: f"0 1 {'9' * 30}"}
    )

    with pytest.raises(CodecError, match="offset info"):
        read_info(response)


@pytest.mark.parametrize(
    "field", ["queueId", "flag", "sysFlag", "bornTimestamp", "reconsumeTimes", "storeTimestamp"]
)
def test_a_reply_whose_number_does_not_fit_is_refused(field: str) -> None:
    fields = {**to_ext_fields(PUSHED), field: str(2**64 + 2**32)}
    header = read_header(Command(326, 1, ext=fields), PushReplyMessage)

    with pytest.raises(CodecError, match="PushReplyMessage"):
        reply_message(header, b"pong")


@pytest.mark.parametrize("blank", ["\x1c", "\x1f", "\x85", "\u3000", " "])
def test_a_number_with_any_blank_is_read(blank: str) -> None:
    command = Command(0, 1, ext={"offset": f"+0{blank}"})

    assert read_header(command, OffsetResponse).offset == 0


@pytest.mark.parametrize("count", ["x", "-1", "1e3", "9" * 5000])
def test_a_record_with_an_invalid_number_of_messages_is_refused(count: str) -> None:
    record = Stored(properties=f"INNER_NUM\x01{count}\x02".encode()).to_bytes()

    with pytest.raises(CodecError, match="INNER_NUM"):
        list(store_times(stored_message(record, "broker-a"), 0))


def test_the_reply_to_a_request_that_failed_fits_a_header() -> None:
    group = "\x80" * 4_000_000  # four times as long in the text of the error

    reply = error_reply(ValueError(f"no consumer of group {group!r}"))
    response = decode_command(*split(reply_frame(Command(307, 9), reply)))

    assert (response.code, response.opaque) == (1, 9)
    assert response.remark is not None
    assert response.remark.startswith("ValueError: no consumer of group")


@pytest.mark.parametrize("digits", [30, 5000])
def test_sql_rejects_numbers_of_any_length(digits: int) -> None:
    with pytest.raises(FilterError, match="too large") as raised:
        compile_sql(f"a = {'9' * digits}")

    assert len(str(raised.value)) < 2 * REMARK_SHOWN


@pytest.mark.parametrize("word", ["AND", "OR"])
def test_sql_joins_any_number_of_conditions(word: str) -> None:
    condition = compile_sql(f" {word} ".join(["a = 1"] * 3_000))

    assert condition({"a": "1"}) is True
    assert condition({"a": "2"}) is False


@pytest.mark.parametrize("link", [" = 1", " IS NULL", " <> TRUE", " NOT IN ('x')"])
def test_sql_rejects_long_chains_of_comparisons(link: str) -> None:
    with pytest.raises(FilterError):
        compile_sql("a" + link * 3_000)


def test_options_reject_json_that_is_nested_too_deeply() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        offsets("earliest")("startingOffsets", "[" * 100_000)


# --- snapshots ------------------------------------------------------------------------------------


def snapshot(tmp_path: Path) -> dict[str, Any]:
    """Return the content of a snapshot with a message in queue 1 of topic ``orders``."""
    cluster = EmbeddedCluster(topics={"orders": 2})
    message = NewMessage(topic="orders", queue_id=1, body=b"paid")
    cluster.brokers[0].state.store.append(message)
    save_snapshot(cluster.brokers, tmp_path / "good")
    content: dict[str, Any] = msgspec.msgpack.decode((tmp_path / "good").read_bytes())
    return content


@pytest.mark.parametrize(
    "content",
    [
        b"\x82\xa6format\xa1\xff",
        b"\x82\xa6format\xa1x\xa7brokers\xdd\x7f\xff\xff\xff",
        b"\x81\xa1x" + b"\x91" * 100_000,
        msgspec.msgpack.encode({"format": FORGED * 1000, "brokers": []}),
    ],
    ids=["no UTF-8", "two billion brokers", "nested", "a long name"],
)
def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").write_bytes(content)

    with pytest.raises(SnapshotError) as raised:
        load_snapshot(EmbeddedCluster().brokers, tmp_path / "data")

    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "other"), (1, 2), (1, -1), (2, 5), (3, 7), (5, b""), (5, b"\xff" * 100)],
    ids=["topic", "queue", "negative queue", "offset", "log offset", "no record", "bad record"],
)
def test_a_snapshot_whose_messages_do_not_fit_is_refused(
    tmp_path: Path, place: int, value: object
) -> None:
    content = snapshot(tmp_path)
    broker = content["brokers"][0]
    message = broker["messages"][0]
    message[place] = value
    (tmp_path / "data").write_bytes(msgspec.msgpack.encode(content))
    cluster = EmbeddedCluster()

    with pytest.raises(SnapshotError, match="damaged"):
        load_snapshot(cluster.brokers, tmp_path / "data")

    assert "orders" not in cluster.brokers[0].topics


@pytest.mark.parametrize(("place", "value"), [(0, [-1, 0]), (2, 3), (3, -1)])
def test_a_snapshot_whose_queues_do_not_fit_is_refused(
    tmp_path: Path, place: int, value: object
) -> None:
    content = snapshot(tmp_path)
    broker = content["brokers"][0]
    broker["topics"]["orders"][place] = value
    (tmp_path / "data").write_bytes(msgspec.msgpack.encode(content))

    with pytest.raises(SnapshotError, match="damaged"):
        load_snapshot(EmbeddedCluster().brokers, tmp_path / "data")


# --- compressed bodies ----------------------------------------------------------------------------


def with_size(content_size: int) -> bytes:
    """Return a small zstd frame whose header has *content_size*."""
    frame = zstandard.ZstdCompressor(write_checksum=False).compress(b"a" * 300)
    magic, blocks = frame[:4], frame[7:]  # between them: descriptor and content size
    return magic + b"\xa0" + content_size.to_bytes(4, "little") + blocks


@pytest.mark.parametrize(
    ("bits", "data"),
    [
        (0x100, lz4.frame.compress(b"small")),
        (0x200, zstandard.ZstdCompressor().compress(b"small")),
        (0x200, zstandard.ZstdCompressor(write_content_size=False).compress(b"small")),
        (0x200, with_size(30 * 1024 * 1024)),
        (0x300, zlib.compress(b"small")),
    ],
    ids=["lz4", "zstd", "zstd of Java", "zstd with a false size", "zlib"],
)
def test_a_small_compressed_body_takes_little_memory(bits: int, data: bytes) -> None:
    def read() -> None:
        with suppress(CodecError):
            assert inflate(data, bits) == b"small"

    assert peak_bytes(read) < 256 * 1024


def test_the_position_of_a_fault_is_inside_the_data() -> None:
    record = Stored(body_length=-100).to_bytes()

    messages, fault = decode_messages(record, MessageQueue("orders", "broker-a", 3))

    assert messages == []
    assert fault is not None
    assert 0 <= fault.position < len(record)
