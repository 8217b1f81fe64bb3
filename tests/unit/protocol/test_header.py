"""Typed headers: round trips, lenient decoding, errors for missing fields."""

from types import NoneType
from typing import Any, get_args

import msgspec.structs
import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.command import Command, ExtFields, encode_command
from rocketmq_aio.protocol.header import Header, read_header, to_ext_fields
from rocketmq_aio.protocol.requests.groups import GetRouteInfo, HeartbeatResponse, UnregisterClient
from rocketmq_aio.protocol.requests.offsets import OffsetResponse, QueryConsumerOffset
from rocketmq_aio.protocol.requests.pull import LitePullMessage, PullMessage, PullMessageResponse
from rocketmq_aio.protocol.requests.send import SendMessage, SendMessageResponse
from tests.unit.protocol.declared import all_headers
from tests.unit.protocol.wire_files import command_in

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(min_size=1),  # a binary header leaves empty ones out
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    NoneType: st.none(),
}


def headers(kind: type[Header]) -> st.SearchStrategy[Header]:
    fields = {
        field.name: st.one_of([VALUES[part] for part in get_args(field.type) or (field.type,)])
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(kind, **fields)


def answer(**ext: str) -> Command:
    return Command(0, 1, 1, ext=ext)


@given(st.sampled_from(all_headers()).flatmap(headers), st.booleans())
def test_every_header_is_read_as_it_was_written(header: Header, binary: bool) -> None:
    frame = encode_command(Command(0, 1), to_ext_fields(header), binary=binary)

    assert read_header(command_in(frame), type(header)) == header


def test_names_on_the_wire_are_those_of_the_broker() -> None:
    header = UnregisterClient(client_id="a@b", producer_group="p", consumer_group="c")

    assert to_ext_fields(header) == {"clientID": "a@b", "producerGroup": "p", "consumerGroup": "c"}


def test_none_fields_are_omitted() -> None:
    assert to_ext_fields(GetRouteInfo(topic="orders")) == {"topic": "orders"}


def test_numbers_and_booleans_are_encoded_as_in_java() -> None:
    header = QueryConsumerOffset(
        consumer_group="g", topic="t", queue_id=-1, set_zero_if_not_found=False
    )

    assert to_ext_fields(header) == {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "-1",
        "setZeroIfNotFound": "false",
    }


def test_a_lite_pull_has_the_fields_of_a_pull_and_its_own_code() -> None:
    assert PullMessage.code == 11
    assert LitePullMessage.code == 361
    assert LitePullMessage.__struct_encode_fields__ == PullMessage.__struct_encode_fields__


def test_undeclared_fields_are_ignored() -> None:
    assert read_header(answer(offset="5", new="x"), OffsetResponse) == OffsetResponse(offset=5)
    assert read_header(answer(new="x"), Header) == Header()


@pytest.mark.parametrize("ext", [None, {}, msgspec.Raw(b"{}"), msgspec.Raw(b"null")])
def test_an_answer_without_fields_is_a_header_without_fields(ext: ExtFields | None) -> None:
    assert read_header(Command(0, 1, 1, ext=ext), Header) == Header()


@pytest.mark.parametrize("text", ["true", "TRUE", "True"])
def test_booleans_are_decoded_case_insensitively(text: str) -> None:
    read = read_header(answer(IS_SUB_CHANGE=text), HeartbeatResponse)

    assert read.subscription_changed is True


@pytest.mark.parametrize("text", ["", " ", "abc", "1.5", "12abc", "9" * 5000])
def test_an_invalid_optional_field_counts_as_missing(text: str) -> None:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "9",
        "minOffset": "1",
        "maxOffset": "9",
        "offsetDelta": text,
    }
    command = command_in(encode_command(Command(0, 1, 1), fields))

    assert read_header(command, PullMessageResponse).offset_delta is None
    assert read_header(answer(**fields), PullMessageResponse).offset_delta is None


@pytest.mark.parametrize("text", ["5", " 5 ", "+5", "0005", "0000000000005", "+05"])
def test_a_number_is_read_as_java_reads_it(text: str) -> None:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": text,
        "minOffset": "-0",
        "maxOffset": "9",
    }
    read = read_header(answer(**fields, offsetDelta=text), PullMessageResponse)

    assert (read.next_begin_offset, read.min_offset, read.offset_delta) == (5, 0, 5)


def test_a_text_of_digits_stays_a_text() -> None:
    fields = {"msgId": "007", "queueId": "007", "queueOffset": "1"}
    read = read_header(answer(**fields), SendMessageResponse)

    assert (read.msg_id, read.queue_id) == ("007", 7)


def test_an_invalid_number_does_not_affect_text_fields() -> None:
    fields = {"consumerGroup": " g ", "topic": "", "queueId": "+1", "setZeroIfNotFound": "maybe"}
    read = read_header(answer(**fields), QueryConsumerOffset)

    assert read == QueryConsumerOffset(consumer_group=" g ", topic="", queue_id=1)


@pytest.mark.parametrize("text", ["", " ", "abc", "0x10", "5_0", "٣", "9" * 5000, "-", "true"])
def test_an_invalid_required_number_is_a_codec_error(text: str) -> None:
    frame = encode_command(Command(0, 1, 1), {"offset": text})

    for command in (answer(offset=text), command_in(frame)):
        with pytest.raises(CodecError, match=r"OffsetResponse of code 0 .* at `\$\.offset`"):
            read_header(command, OffsetResponse)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(CodecError, match=r"SendMessageResponse of code 0 .*`queueId`"):
        read_header(answer(msgId="1"), SendMessageResponse)


@pytest.mark.parametrize("ext", [b"[]", b'"x"', b'{"offset":{}}', b'{"offset":[1]}'])
def test_ext_fields_of_another_shape_are_a_codec_error(ext: bytes) -> None:
    with pytest.raises(CodecError):
        read_header(Command(0, 1, 1, ext=msgspec.Raw(ext)), OffsetResponse)


def test_numbers_that_come_as_json_numbers_are_read() -> None:
    command = Command(0, 1, 1, ext=msgspec.Raw(b'{"msgId":5,"queueId":1,"queueOffset":7}'))

    assert read_header(command, SendMessageResponse) == SendMessageResponse(
        msg_id="5", queue_id=1, queue_offset=7
    )


def test_one_letter_names_of_a_send_match_the_broker() -> None:
    assert SendMessage.__struct_encode_fields__ == tuple("abcdefghijklmn")
