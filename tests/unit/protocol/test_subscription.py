"""Subscriptions: tag expressions, tag hashes, SQL expressions."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.protocol.subscription import java_hash, subscription


def java_hash_by_definition(text: str) -> int:
    """s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, in signed 32 bits."""
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    total: int = sum(unit * 31 ** (len(units) - 1 - place) for place, unit in enumerate(units))
    return (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("Aa", 2112),
        ("BB", 2112),
        ("中文", 646394),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
        ("\x7f" * 20, java_hash_by_definition("\x7f" * 20)),
    ],
)
def test_a_hash_is_the_one_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text(st.characters(codec=None), max_size=30))
def test_every_hash_is_the_one_of_the_definition(text: str) -> None:
    assert java_hash(text) == java_hash_by_definition(text)


@pytest.mark.parametrize("selector", [None, "", "*", " * ", "  ", MessageSelector.by_tag("*")])
def test_the_default_expression_is_all_messages(selector: str | MessageSelector | None) -> None:
    made = subscription("orders", selector, 5)

    assert (made.expression, made.kind, made.tags, made.is_sql) == ("*", "TAG", frozenset(), False)
    assert (made.topic, made.version) == ("orders", 5)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("paid", {"paid"}),
        (" paid ", {"paid"}),
        ("paid || shipped", {"paid", "shipped"}),
        ("paid||shipped||paid", {"paid", "shipped"}),
        ("paid || ", {"paid"}),
        ("|| paid", {"paid"}),
        ("已付", {"已付"}),
        ("a b", {"a b"}),
    ],
)
def test_tags_are_split_as_in_the_broker(expression: str, tags: set[str]) -> None:
    for selector in (expression, MessageSelector.by_tag(expression)):
        made = subscription("orders", selector, 5)

        assert made.tags == tags
        assert (made.expression, made.is_sql) == (expression, False)


def test_a_heartbeat_carries_tags_and_their_hashes_in_one_order() -> None:
    body = subscription("orders", "b || a", 5).to_body()

    assert (body.topic, body.sub_string, body.sub_version) == ("orders", "b || a", 5)
    assert (body.tags_set, body.code_set, body.expression_type) == (["a", "b"], [97, 98], "TAG")


def test_an_sql_expression_is_left_to_the_broker() -> None:
    made = subscription("orders", MessageSelector.by_sql("price > 5"), 5)
    body = made.to_body()

    assert (made.expression, made.kind, made.is_sql) == ("price > 5", "SQL92", True)
    assert (body.tags_set, body.code_set, body.expression_type) == ([], [], "SQL92")


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_an_expression_without_tags_is_rejected(expression: str) -> None:
    with pytest.raises(ConfigError, match="selector") as caught:
        subscription("orders", expression, 5)

    assert caught.value.value == expression


@pytest.mark.parametrize(
    "selector",
    [
        5,
        b"paid",
        ["paid"],
        MessageSelector(5),  # type: ignore[arg-type]
        MessageSelector("paid", "tag"),  # type: ignore[arg-type]
        MessageSelector("a > 5", "SQL"),  # type: ignore[arg-type]
        MessageSelector("a > 5", ""),  # type: ignore[arg-type]
        "\ud800",
        MessageSelector.by_sql("a = '\udfff'"),
    ],
)
def test_an_invalid_selector_is_rejected(selector: object) -> None:
    with pytest.raises(ConfigError, match="selector"):
        subscription("orders", selector, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", ["new | paid", "new|paid", "new ||| paid", "|"])
def test_tags_of_an_expression_hold_no_bar(expression: str) -> None:
    for selector in (expression, MessageSelector.by_tag(expression)):
        with pytest.raises(ConfigError, match=r'selector=.* such as "new \|\| paid"') as caught:
            subscription("orders", selector, 5)

        assert caught.value.value == expression


@pytest.mark.parametrize(
    "expression",
    ["price > 3", "a = 'b'", "a='b'", "a IS NOT NULL", "a BETWEEN 1 AND 2", "a IN ('b')"],
)
def test_an_sql_condition_is_no_tag_unless_it_is_given_as_one(expression: str) -> None:
    with pytest.raises(ConfigError, match="looks like an SQL condition: use MessageSelector"):
        subscription("orders", expression, 5)

    assert subscription("orders", MessageSelector.by_tag(expression), 5).tags == {expression}


@pytest.mark.parametrize("tag", ["a=b", "<a>", "it's", "in", "x|is null", "between"])
def test_a_tag_may_have_signs_and_words_of_sql(tag: str) -> None:
    assert subscription("orders", tag.replace("|", "||"), 5).tags == set(tag.split("|"))


@pytest.mark.parametrize("expression", ["", "  ", None, 5])
def test_an_sql_expression_is_never_empty(expression: object) -> None:
    with pytest.raises(ConfigError, match="selector"):
        MessageSelector.by_sql(expression)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrapped", [str, MessageSelector.by_tag, MessageSelector.by_sql])
def test_subclasses_of_str_become_plain_text(
    wrapped: Callable[[str], str | MessageSelector],
) -> None:
    class Tag(str):  # msgspec encodes exact strings only
        pass

    selector: str | MessageSelector = Tag("paid") if wrapped is str else wrapped(Tag("paid"))

    found = subscription("orders", selector, 5)

    assert type(found.expression) is str
    assert b'"subString":"paid"' in msgspec.json.encode(found.to_body())
