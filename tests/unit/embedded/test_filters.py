"""Filters: tags, and SQL92 beyond the conformance cases."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.broker.filters import FilterError, compile_filter, compile_sql


def test_unknown_kinds_and_stars_match_everything() -> None:
    for expression, kind in (("*", "TAG"), ("", None), ("x", "OTHER")):
        assert compile_filter(expression, kind, is_5=True) is None


def test_a_tag_expression_of_bars_alone_is_an_error() -> None:
    with pytest.raises(FilterError):
        compile_filter("||||", "TAG", is_5=True)


@pytest.mark.parametrize("expression", ["(" * 500 + "TRUE" + ")" * 500, "NOT " * 500 + "TRUE"])
def test_deep_nesting_is_an_error(expression: str) -> None:
    with pytest.raises(FilterError, match="nested"):
        compile_sql(expression)


def test_a_long_chain_is_no_nesting() -> None:
    condition = compile_sql(" OR ".join(f"a = '{number}'" for number in range(500)))

    assert condition({"a": "499"})


@pytest.mark.parametrize(
    "expression",
    ["a > ?", "a = 1e999", f"a = {'1' * 5000}", "a = /* x", "\0", "a = \ud800"],
    ids=["symbol", "double", "digits", "comment", "control", "surrogate"],
)
def test_garbage_is_an_error(expression: str) -> None:
    with pytest.raises(FilterError):
        compile_sql(expression)


def test_two_signs_are_no_comment_without_an_end_of_line_which_is_not_searched_each_time() -> None:
    expression = "a = --1 or " * 1000 + "a = '" + "x" * 2**24 + "'"  # hours, if it were

    assert compile_sql(expression)({"a": "1"})
    assert not compile_sql("a = 2 -- or a = 1\n")({"a": "1"})


@pytest.mark.parametrize("value", ["1_000", "١", "1.0", "0x1", "", "1" * 5000])
def test_only_java_numbers_are_numbers(value: str) -> None:
    assert not compile_sql("a > 0")({"a": value})


@pytest.mark.parametrize(("value", "is_read"), [("1e5f", True), ("NaNf", False), ("\xa02", False)])
def test_only_java_doubles_are_doubles(value: str, is_read: bool) -> None:
    assert compile_sql("a > 1.5")({"a": value}) is is_read


def test_numbers_of_the_rest_that_brokers_ignore_are_not_checked() -> None:
    assert compile_sql("a = 5 1e999")({"a": "5"})
