"""FilterMatches: filters without a match are reported once."""

from rocketmq_aio.consumer.checks.filter_matches import (
    NOTHING_MESSAGES,
    NOTHING_SECONDS,
    FilterMatches,
)
from rocketmq_aio.consumer.common.events import SubscriptionMatchesNothing
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.protocol.subscription import subscription

SQL = MessageSelector.by_sql("price > 3")


def reported(
    matches: FilterMatches, now: float, selector: str | MessageSelector = "new"
) -> list[SubscriptionMatchesNothing]:
    return matches.unmatched([subscription("orders", selector, 1)], now)


def test_filter_without_a_match_is_reported_once() -> None:
    matches = FilterMatches()
    matches.note("orders", NOTHING_MESSAGES, 0)
    began = reported(matches, 0.0)
    events = reported(matches, NOTHING_SECONDS)

    assert began == reported(matches, NOTHING_SECONDS + 1) == []
    assert events == [
        SubscriptionMatchesNothing(topic="orders", expression="new", messages=NOTHING_MESSAGES)
    ]


def test_few_messages_or_a_short_time_are_not_reported() -> None:
    few, short = FilterMatches(), FilterMatches()
    few.note("orders", NOTHING_MESSAGES - 1, 0)
    short.note("orders", NOTHING_MESSAGES, 0)

    for matches, seconds in ((few, NOTHING_SECONDS), (short, NOTHING_SECONDS - 1)):
        assert reported(matches, 0.0) == reported(matches, seconds) == []


def test_match_resets_the_count() -> None:
    matches = FilterMatches()
    for offset in (0.0, 1000.0):
        matches.note("orders", NOTHING_MESSAGES, 0)
        matches.note("orders", 32, 1)
        assert reported(matches, offset) == reported(matches, offset + NOTHING_SECONDS) == []
        matches.note("orders", NOTHING_MESSAGES, 0)
        assert reported(matches, offset + 100) == []
        assert len(reported(matches, offset + 100 + NOTHING_SECONDS)) == 1


def test_new_expression_resets_the_count() -> None:
    matches = FilterMatches()
    matches.note("orders", NOTHING_MESSAGES, 0)
    reported(matches, 0.0)

    assert (
        reported(matches, NOTHING_SECONDS, SQL) == reported(matches, 3 * NOTHING_SECONDS, SQL) == []
    )
    matches.note("orders", NOTHING_MESSAGES, 0)
    (events,) = reported(matches, 3 * NOTHING_SECONDS, SQL)
    assert events.expression == "SQL92: price > 3"


def test_unsubscribed_filter_resets_the_count() -> None:
    matches = FilterMatches()
    matches.note("orders", NOTHING_MESSAGES, 0)
    reported(matches, 0.0)
    matches.unmatched([], 1.0)

    assert reported(matches, NOTHING_SECONDS) == reported(matches, 3 * NOTHING_SECONDS) == []


def test_subscription_to_all_is_not_a_filter() -> None:
    matches = FilterMatches()
    matches.note("orders", NOTHING_MESSAGES, 0)

    assert reported(matches, 0.0, "*") == reported(matches, NOTHING_SECONDS, "*") == []
