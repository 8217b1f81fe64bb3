"""Properties: lenient parsing, strict encoding."""

import pytest

from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import (
    RESERVED,
    encode_properties,
    find_property,
    parse_properties,
    take_properties,
)


def test_every_pair_ends_with_a_separator() -> None:
    assert encode_properties({"a": "1", "b": "2"}) == "a\x011\x02b\x012\x02"
    assert encode_properties({}) == ""


@pytest.mark.parametrize(
    ("raw", "properties"),
    [
        (b"", {}),
        (b"a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
        (b"a\x011\x02b\x012", {"a": "1", "b": "2"}),
        (b"a\x011\x02a\x012", {"a": "2"}),
        (b"a\x011\x02a\x01\x02", {"a": "1"}),
        (b"a\x01\x02b\x012", {"b": "2"}),
        (b"\x011\x02b\x012", {"b": "2"}),
        (b"a\x02b\x012", {"b": "2"}),
        (b"\x02\x02\x01\x02b\x012\x02\x02", {"b": "2"}),
        (b"a\x011\x013", {"a": "1\x013"}),
        ("名\x01值\x02".encode(), {"名": "值"}),
        (b"a\x01\xff\xfe\x02", {"a": "\ufffd\ufffd"}),
        (b"a b\x01 c \x02", {"a b": " c "}),
    ],
)
def test_malformed_pairs_are_dropped(raw: bytes, properties: dict[str, str]) -> None:
    assert parse_properties(raw) == properties
    for name in ("a", "b", "名", "a b"):
        assert find_property(raw, name.encode() + b"\x01") == properties.get(name)


def test_find_property_matches_whole_names() -> None:
    raw = b"MY_TAGS\x01x\x02TAGS\x01y\x02TAGS2\x01z\x02"

    assert find_property(raw, b"TAGS\x01") == "y"
    assert find_property(b"MY_TAGS\x01x", b"TAGS\x01") is None


def test_find_property_does_not_match_values() -> None:
    assert find_property(b"a\x01TAGS\x02b\x012", b"TAGS\x01") is None


# --- checks -------------------------------------------------------------------------------------


def test_take_properties_copies_and_encodes() -> None:
    given, named = {"a": "1", "b": "2"}, {"kept": "0"}
    encoded = take_properties("orders", given, named)

    assert named == {"kept": "0", "a": "1", "b": "2"}
    assert encoded == encode_properties(given)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_system_property_names_are_rejected(name: str) -> None:
    with pytest.raises(
        InvalidMessageError, match=f"'{name}' belongs to the system.*user_properties"
    ):
        take_properties("orders", {"mine": "1", name: "2"}, {})


def test_light_message_queues_may_have_any_names_without_slash() -> None:
    Message("chat", b"1", properties={"INNER_MULTI_DISPATCH": "%LMQ%alice,%LMQ%bob", "a/b": "/"})


@pytest.mark.parametrize(
    "names",
    ["%LMQ%alice/bob", "alice", "%LMQ%", "%LMQ%alice,", "bob,%LMQ%alice", "%LMQ%bob,%LMQ%bob"],
)
def test_names_of_light_message_queues_that_harm_brokers_are_rejected(names: str) -> None:
    """A 5.5.0 broker that gets ``bob,%LMQ%alice`` delivers nothing of any topic afterwards."""
    with pytest.raises(InvalidMessageError, match=f"INNER_MULTI_DISPATCH.*slash.*{names}"):
        Message("chat", b"1", properties={"INNER_MULTI_DISPATCH": names})


def test_an_error_about_a_property_names_it_and_not_its_value() -> None:
    with pytest.raises(InvalidMessageError, match="property 'card': the value is bytes") as caught:
        take_properties("orders", {"country": "FR", "card": b"4111"}, {})  # type: ignore[dict-item]
    assert "4111" not in str(caught.value)
    with pytest.raises(InvalidMessageError, match="properties are list") as caught:
        take_properties("orders", ["4111"], {})  # type: ignore[arg-type]
    assert "4111" not in str(caught.value)


def test_a_blank_value_is_taken() -> None:
    assert take_properties("orders", {"a": " ", "b": "\t\n"}, {}) == "a\x01 \x02b\x01\t\n\x02"
