"""Prepared frames: equal to those of the general encoder."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec.structs
import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import BINARY_HEADER
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.pull import LitePullMessage, PullMessage
from rocketmq_aio.protocol.requests.send import EndTransaction, SendBatchMessage, SendMessage
from rocketmq_aio.protocol.templates import (
    MAX_REMEMBERED,
    RequestTemplate,
    SendTemplate,
    TemplateDecoder,
)
from tests.unit.protocol.wire_files import command_in

Int32 = st.integers(-(2**31), 2**31 - 1)
Int64 = st.integers(-(2**63), 2**63 - 1)
Names = st.text(min_size=1, max_size=30)
NOW = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True)
class Changing:
    """Fields that differ from one send to the next."""

    opaque: int = 7
    numbers: tuple[int, int, int] = (3, 1, 9)
    born_ms: int = NOW
    properties: bytes = b"WAIT\x01true\x02"
    body: bytes = b"hello"


def sends(kind: type[SendMessage]) -> st.SearchStrategy[SendMessage]:
    return st.builds(
        kind,
        producer_group=Names,
        topic=Names,
        default_topic=Names,
        default_topic_queue_nums=Int32,
        queue_id=Int32,
        sys_flag=Int32,
        born_timestamp=Int64,
        flag=Int32,
        properties=st.none() | Names,
        reconsume_times=st.none() | Int32,
        unit_mode=st.none() | st.booleans(),
        max_reconsume_times=st.none() | Int32,
        batch=st.just(kind is SendBatchMessage),
        broker_name=st.none() | st.text(max_size=20),
    )


Pulls = st.sampled_from([PullMessage, LitePullMessage]).flatmap(
    lambda kind: st.builds(
        kind,
        consumer_group=Names,
        topic=Names,
        queue_id=Int32,
        queue_offset=Int64,
        max_msg_nums=Int32,
        sys_flag=Int32,
        commit_offset=Int64,
        suspend_timeout_millis=Int64,
        subscription=st.none() | st.text(max_size=30),
        sub_version=Int64,
        expression_type=st.sampled_from([None, "TAG", "SQL92"]),
        broker_name=st.none() | st.text(max_size=20),
    )
)
Changes = st.builds(
    Changing,
    opaque=Int32,
    numbers=st.tuples(Int32, Int32, Int32),
    born_ms=st.integers(0, 9_999_999_999_999),
    properties=Names.map(str.encode),
    body=st.binary(max_size=50),
)
SEND = SendMessage(
    producer_group="g",
    topic="orders",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=0,
    sys_flag=0,
    born_timestamp=0,
    flag=0,
    batch=False,
)


def sent(template: SendTemplate, change: Changing) -> Command:
    """Return what a frame of *template* says."""
    head = template.frame_head(
        change.opaque, change.numbers, change.born_ms, change.properties, len(change.body)
    )
    return command_in(head + change.body)


def spelled(like: SendMessage, change: Changing) -> Command:
    """Return what the codec for everything says of the same send."""
    queue_id, sys_flag, flag = change.numbers
    header = msgspec.structs.replace(
        like,
        queue_id=queue_id,
        sys_flag=sys_flag,
        flag=flag,
        born_timestamp=change.born_ms,
        properties=change.properties.decode(),
    )
    command = Command(like.code, change.opaque, body=change.body)
    return command_in(encode_command(command, to_ext_fields(header), binary=True))


def assert_same(one: Command, other: Command, kind: type[SendMessage] | type[PullMessage]) -> None:
    assert read_header(one, kind) == read_header(other, kind)
    assert set(one.ext_fields()) == set(other.ext_fields())
    for name in ("code", "opaque", "flag", "remark", "version", "body"):
        assert getattr(one, name) == getattr(other, name)


@given(sends(SendMessage) | sends(SendBatchMessage), st.lists(Changes, min_size=1, max_size=4))
def test_a_send_template_matches_encode_command(like: SendMessage, changes: list[Changing]) -> None:
    template = SendTemplate(like)
    for change in changes:
        assert_same(sent(template, change), spelled(like, change), type(like))


@given(Pulls, st.lists(st.tuples(Int32, Int64), min_size=1, max_size=4))
def test_a_request_template_matches_encode_command(
    like: PullMessage, changes: list[tuple[int, int]]
) -> None:
    template = RequestTemplate(like, "queueOffset")
    for opaque, queue_offset in changes:
        header = msgspec.structs.replace(like, queue_offset=queue_offset)
        command = Command(like.code, opaque)
        frame = encode_command(command, to_ext_fields(header), binary=True)
        prepared = template.frame(opaque, str(queue_offset))

        assert template.code == like.code
        assert_same(command_in(prepared), command_in(frame), type(like))


def test_a_request_template_writes_any_text() -> None:
    like = EndTransaction(
        producer_group="100%b",
        tran_state_table_offset=0,
        commit_log_offset=0,
        commit_or_rollback=8,
        msg_id="",
    )
    template = RequestTemplate(like, "tranStateTableOffset", "commitLogOffset", "msgId")
    header = msgspec.structs.replace(
        like, tran_state_table_offset=3, commit_log_offset=2**60, msg_id="\u00fc%s" * 40
    )
    prepared = template.frame(7, "3", str(2**60), header.msg_id)

    assert read_header(command_in(prepared), EndTransaction) == header


def test_a_request_template_takes_names_of_any_length() -> None:
    names = ["x" * length for length in range(1, 128)]  # one has as many characters as % is
    frame = RequestTemplate(SEND, *names).frame(7, *names)

    assert {name: name for name in names}.items() <= command_in(frame).ext_fields().items()


def test_a_request_template_rejects_half_a_surrogate_pair() -> None:
    template = RequestTemplate(SEND, "a")

    with pytest.raises(CodecError, match="surrogates not allowed"):
        template.frame(7, "\ud800")


@pytest.mark.parametrize("born_ms", [0, 1, 999_999_999_999, NOW, 9_999_999_999_999])
def test_a_wrong_clock_does_not_break_frames(born_ms: int) -> None:
    change = Changing(born_ms=born_ms)

    assert_same(sent(SendTemplate(SEND), change), spelled(SEND, change), SendMessage)


def test_the_clock_may_go_back() -> None:
    template = SendTemplate(SEND)
    born = [sent(template, Changing(born_ms=NOW + step)) for step in (0, 1, 0, -1)]

    assert [read_header(each, SendMessage).born_timestamp - NOW for each in born] == [0, 1, 0, -1]


def test_the_cache_of_a_template_is_bounded() -> None:
    template = SendTemplate(SEND)
    flags = [*range(MAX_REMEMBERED + 10), 0, 1]
    read = [read_header(sent(template, Changing(numbers=(0, 0, n))), SendMessage) for n in flags]

    assert [each.flag for each in read] == flags


@pytest.mark.parametrize("size", [1, 30_000, 32_767])
def test_properties_may_be_as_long_as_a_broker_stores_them(size: int) -> None:
    change = Changing(properties=b"x" * size)

    assert_same(sent(SendTemplate(SEND), change), spelled(SEND, change), SendMessage)


def header_of(properties: bytes, opaque: int = 7, queue_id: int = 3) -> bytes:
    head = SendTemplate(SEND).frame_head(opaque, (queue_id, 1, 9), NOW + opaque, properties, 5)
    return head[8:]


def decoded(decode: Callable[[int, bytes, bytes], Command], header: bytes) -> Command | None:
    """Return the command in *header*; None: the decoder rejects it."""
    try:
        command = decode(BINARY_HEADER, header, b"hello")
        assert isinstance(command.ext, dict)
        return command
    except CodecError:
        return None


@given(
    st.lists(
        st.tuples(st.text(max_size=40), st.integers(0, 2**31 - 1), st.integers(0, 2)),
        min_size=1,
        max_size=5,
    )
)
def test_the_template_decoder_returns_what_the_general_one_does(
    sent: list[tuple[str, int, int]],
) -> None:
    decoder = TemplateDecoder()
    for properties, opaque, queue_id in sent:
        header = header_of(properties.encode(), opaque, queue_id)
        expected = decoded(decode_command, header)
        assert expected is not None
        assert decoded(decoder.decode, header) == expected


@given(st.integers(0, 150), st.binary(min_size=1, max_size=4), st.booleans())
def test_both_decoders_agree_about_damaged_headers(at: int, data: bytes, is_cut: bool) -> None:
    header = header_of(b"KEYS\x01k\x02WAIT\x01true\x02")
    damaged = header[:at] if is_cut else header[:at] + data + header[at + len(data) :]
    decoder = TemplateDecoder()
    decoded(decoder.decode, header)  # remembers the constant fields

    assert decoded(decoder.decode, damaged) == decoded(decode_command, damaged)


def test_a_template_decoder_remembers_a_bounded_number_of_fields() -> None:
    decoder = TemplateDecoder()
    for queue_id in range(MAX_REMEMBERED + 5):
        decoder.decode(BINARY_HEADER, header_of(b"", 7, queue_id), b"")

    assert len(decoder._constants) <= MAX_REMEMBERED + 1
