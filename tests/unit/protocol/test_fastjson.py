"""fastjson dialect: converted to standard JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.fastjson import MAX_DEPTH, read_body, to_standard
from tests.unit.costs import cpu_seconds, peak_bytes

Values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
Queues = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


def standard(text: bytes) -> Any:  # noqa: ANN401 - any JSON value
    return json.loads(to_standard(text))


def standard_or_fault(text: bytes) -> bytes | CodecError:
    try:
        return to_standard(text)
    except CodecError as fault:
        return fault


def with_object_keys(entries: list[tuple[dict[str, Any], Any]]) -> bytes:
    """Return a map whose keys are objects, as a Java peer writes it."""
    written = [json.dumps(key) + ":" + json.dumps(value) for key, value in entries]
    return ("{" + ",".join(written) + "}").encode()


# --- what is understood -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        (b'{-1:"a", 2 :"b"}', {"-1": "a", "2": "b"}),
        (b'{"t":{0:{1:[{2:3}]}}}', {"t": {"0": {"1": [{"2": 3}]}}}),
        (b'[{0:1},{"a":2}]', [{"0": 1}, {"a": 2}]),
        (b"{true:1,null:2,name:3}", {"true": 1, "null": 2, "name": 3}),
        (b'{"a":"{0:1}","b":"}\\"{","c":"\\\\"}', {"a": "{0:1}", "b": '}"{', "c": "\\"}),
        (b"{}", {}),
        (b"[]", []),
        (b" \r\n\t{ } \n", {}),
        (b'{\n\t0 : 1 ,\n "b" : [ 1 , 2 ] }', {"0": 1, "b": [1, 2]}),
        (b'"text"', "text"),
        (b"17", 17),
        ('{0:"主题"}'.encode(), {"0": "主题"}),
    ],
)
def test_keys_become_strings_and_nothing_else_changes(text: bytes, meaning: object) -> None:
    assert standard(text) == meaning


def test_an_object_key_becomes_a_string() -> None:
    read = standard(b'{{"brokerName":"b","queueId":0,"topic":"t"}:5,{"queueId":1}:6}')

    assert [(json.loads(key), value) for key, value in read.items()] == [
        ({"brokerName": "b", "queueId": 0, "topic": "t"}, 5),
        ({"queueId": 1}, 6),
    ]


def test_an_object_key_may_contain_number_keys() -> None:
    ((key, value),) = standard(b"{{0:{1:2}}:{3:4}}").items()

    assert (json.loads(key), value) == ({"0": {"1": 2}}, {"3": 4})


@given(Values)
def test_standard_json_keeps_its_meaning(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert standard(text.encode()) == value


@given(st.lists(st.tuples(Queues, Values), max_size=4))
def test_objects_as_keys_are_read_back(entries: list[tuple[dict[str, Any], Any]]) -> None:
    read = standard(with_object_keys(entries))
    expected = {json.dumps(key): value for key, value in entries}

    assert {json.dumps(json.loads(key)): value for key, value in read.items()} == expected


@given(Values)
def test_conversion_is_idempotent(value: object) -> None:
    once = to_standard(json.dumps(value).encode())

    assert to_standard(once) == once


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        (b"{", 1, "brackets are closed"),
        (b'{"a":[1,2', 9, "brackets are closed"),
        (b'{"a":1]', 6, "do not match"),
        (b'[{"a":1]}', 7, "do not match"),
        (b"}", 0, "do not match"),
        (b'{"a":"b', 5, "no end"),
        (b'{"a":"b\\"}', 5, "no end"),
        (b'{"a":"b\\', 5, "no end"),
        (b'{{"a":1', 7, "brackets are closed"),
        (b'{"a":1}x', 7, "more after its end"),
        (b"{0:1}{0:1}", 5, "more after its end"),
        (b'{{{"a":1}:2}:3}', 2, "inside an object key"),
        (b'{{"\xff":1}:2}', 1, "utf-8"),
    ],
)
def test_invalid_json_is_rejected_with_its_position(
    text: bytes, position: int, reason: str
) -> None:
    with pytest.raises(CodecError, match=reason) as caught:
        to_standard(text)

    assert (caught.value.field, caught.value.position) == ("JSON body", position)


@pytest.mark.parametrize(
    "opening", [b"[", b'{"a":', b"{0:", b"{{0:"], ids=["array", "object", "number-key", "key"]
)
def test_too_deep_nesting_is_rejected(opening: bytes) -> None:
    with pytest.raises(CodecError):
        to_standard(opening * 100_000)


def test_the_depth_of_a_key_counts() -> None:
    inside = b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2)

    assert standard(b'{{"a":' + inside + b"}:1}")
    with pytest.raises(CodecError, match=f"deeper than {MAX_DEPTH}"):
        to_standard(b'[{{"a":' + inside + b"}:1}]")


@given(st.binary(max_size=60) | st.text('{}[]",:\\0a \x00', max_size=60).map(str.encode))
def test_any_bytes_convert_or_raise_codec_error(text: bytes) -> None:
    made = standard_or_fault(text)

    if isinstance(made, CodecError):
        assert 0 <= made.position <= len(text)
    else:
        assert len(made) <= 10 * len(text) + 2


# --- time and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"{" + b",".join(b'"key%d":1' % i for i in range(n)) + b"}",
        lambda n: b"{" + b",".join(b'%d:"value"' % i for i in range(n)) + b"}",
        lambda n: b"{" + b",".join(b'{"queueId":%d}:5' % i for i in range(n)) + b"}",
        lambda n: b'{"a":"' + b"\\n" * n * 10 + b'"}',
        lambda n: b"{" * 2 + b" " * n * 10 + b"}:1}",
        lambda n: b"{" + b"1" * n * 10 + b":1}",
    ],
    ids=["strings", "numbers", "objects", "escapes", "space", "long-number"],
)
def test_conversion_time_is_linear(make: Callable[[int], bytes]) -> None:
    small, large = make(1000), make(16_000)

    # 16 times as long where it grows with the text, 256 times where with its square.
    assert cpu_seconds(lambda: to_standard(large)) < 64 * cpu_seconds(lambda: to_standard(small))


def test_the_cost_of_an_entry_does_not_depend_on_its_length() -> None:
    """The offsets of a large group have megabytes: byte by byte they block the event loop."""
    entry = b'{"brokerName":"%s","queueId":1,"topic":"%s"}:{"brokerOffset":%d,"lastTimestamp":%d}'
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    counts = []
    for size in (1, 100):
        name, number, calls = b"b" * size, 10**size, 0
        text = b"{" + entry % (name, name, number, number) + b"}"
        sys.setprofile(count)
        try:
            to_standard(text)
        finally:
            sys.setprofile(None)
        counts.append(calls)

    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b",".join(b'{"queueId":%d}:5' % i for i in range(4000)) + b"}",
        b'{{"' + b'\\"' * 30_000 + b'":1}:2}',
        b"{" * 64 + b'"a":1' + b"}:1" * 63 + b"}",
        b"[" * 65_536,
        b'{"a":' * 13_000,
    ],
    ids=["object-keys", "escapes-in-a-key", "keys-in-keys", "arrays", "objects"],
)
def test_conversion_memory_is_linear(text: bytes) -> None:
    assert peak_bytes(lambda: standard_or_fault(text)) < 16 * len(text) + 100_000


# --- typed --------------------------------------------------------------------------------------


def test_a_typed_body_is_read_in_either_dialect() -> None:
    assert read_body(b'{"0":"a"}', dict[int, str]) == {0: "a"}
    assert read_body(b'{0:"a"}', dict[int, str]) == {0: "a"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'{0:"a"}',
        b'{"a":1.5}',
        b'{"a":1e400}',
        b'{"a":NaN}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"\xff":1}',
        b'{"\\ud800":1}',
        b'{"a":1}{"b":2}',
        b'{"a":1}\x00',
    ],
)
def test_a_body_that_does_not_fit_its_type_is_a_codec_error(body: bytes) -> None:
    with pytest.raises(CodecError, match="body at byte"):
        read_body(body, dict[str, int])


def test_the_last_duplicate_key_wins() -> None:
    assert read_body(b'{"a":1,"a":2}', dict[str, int]) == {"a": 2}
    assert read_body(b"{0:1,0:2}", dict[int, int]) == {0: 2}
