"""Filter matches: detects filters that match no message of their topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.consumer.common.events import SubscriptionMatchesNothing
from rocketmq_aio.protocol.subscription import Subscription

NOTHING_MESSAGES: Final = 1000
NOTHING_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Unmatched:
    messages: int = 0
    text: str | None = None  # of the expression
    since: float = 0.0
    reported: bool = False


class FilterMatches:
    """Counts messages of filtered topics since the last match."""

    def __init__(self) -> None:
        self._topics: dict[str, _Unmatched] = {}

    def note(self, topic: str, advanced: int, matched: int) -> None:
        """Count a pull that advanced by *advanced* offsets with *matched* messages."""
        if matched:
            self._topics.pop(topic, None)
        else:
            self._topics.setdefault(topic, _Unmatched()).messages += advanced

    def unmatched(
        self, wanted: Iterable[Subscription], now: float
    ) -> list[SubscriptionMatchesNothing]:
        """Return filters without a match; each once until its next match.

        The counts of topics without a filter in *wanted* are forgotten.
        """
        filters = {each.topic: each for each in wanted if each.tags or each.is_sql}
        for topic in self._topics.keys() - filters.keys():
            del self._topics[topic]
        return [
            SubscriptionMatchesNothing(
                topic=each.topic,
                expression=expression_text(each.kind, each.expression),
                messages=messages,
            )
            for each in filters.values()
            if (messages := self._unmatched_count(each, now))
        ]

    def _unmatched_count(self, wanted: Subscription, now: float) -> int:
        unmatched = self._topics.get(wanted.topic)
        if unmatched is None:
            return 0
        text = expression_text(wanted.kind, wanted.expression)
        if unmatched.text != text:
            # Messages counted for another expression do not count.
            messages = unmatched.messages if unmatched.text is None else 0
            self._topics[wanted.topic] = _Unmatched(messages, text, now)
            return 0
        enough = unmatched.messages >= NOTHING_MESSAGES and now - unmatched.since >= NOTHING_SECONDS
        if unmatched.reported or not enough:
            return 0
        unmatched.reported = True
        return unmatched.messages


def expression_text(kind: str, expression: str) -> str:
    """Return an expression as events show it: of other kinds than tags with its kind."""
    return expression if kind == "TAG" else f"{kind}: {expression}"
