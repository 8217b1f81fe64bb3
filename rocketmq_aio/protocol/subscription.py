"""Subscriptions: tag expressions, tag hashes, SQL expressions."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.protocol.bodies import SubscriptionData

ALL: Final = "*"
KINDS: Final = ("TAG", "SQL92")  # for other kinds brokers return all messages unfiltered
EXAMPLE: Final = 'tags joined by ||, such as "new || paid"'
SIGN_BIT: Final = 0x8000_0000
# As tags such a condition matches nothing.  A tag may be ``a=b``.
SQL: Final = re.compile(
    r"\s(=|<>|[<>]=?)\s|=\s*'|\sis\s+(not\s+)?null\b|\sbetween\s|\sin\s*\(", re.IGNORECASE
)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, signed 32 bits."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + (raw[at] << 8 | raw[at + 1])) & 0xFFFF_FFFF
    return value - 2 * SIGN_BIT if value & SIGN_BIT else value


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """A valid expression; *tags* is empty for SQL and for all messages."""

    topic: str
    expression: str
    kind: str
    tags: frozenset[str]
    version: int  # ms; brokers reject a pull with a newer version than the last heartbeat

    @property
    def is_sql(self) -> bool:
        """Whether only the broker can evaluate it."""
        return self.kind != "TAG"

    def selects_same(self, other: Subscription) -> bool:
        """Whether *other* has the same expression."""
        return (self.kind, self.expression) == (other.kind, other.expression)

    def after(self, other: Subscription) -> Subscription:
        """Return this subscription with a version that replaces *other* at brokers."""
        return msgspec.structs.replace(self, version=other.version + 1)

    def to_body(self) -> SubscriptionData:
        """Return it as sent in heartbeats."""
        tags = sorted(self.tags)
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=tags,
            code_set=[java_hash(tag) for tag in tags],
            sub_version=self.version,
            expression_type=self.kind,
        )


def subscription(topic: str, selector: str | MessageSelector | None, version: int) -> Subscription:
    """Return the subscription of *topic* with *selector*; a string is a tag expression.

    :raises ConfigError: *selector* is invalid, has no tag, or is a string like an SQL condition
    """
    expression, kind = _given(selector)
    if not isinstance(expression, str) or kind not in KINDS:
        raise ConfigError("selector", selector, f"expected text of kind {' or '.join(KINDS)}")
    expression = str.__str__(expression)
    try:
        expression.encode()
    except UnicodeError as error:
        raise ConfigError("selector", expression, f"it cannot be sent: {error}") from error
    if kind != "TAG":
        return Subscription(topic, expression, kind, frozenset(), version)
    if expression.strip() in ("", ALL):
        return Subscription(topic, ALL, kind, frozenset(), version)
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    # A tag with a bar cannot be sent either: `new | paid` would match nothing.
    if not tags or any("|" in tag for tag in tags):
        raise ConfigError("selector", expression, f'expected {EXAMPLE}, or "*"')
    return Subscription(topic, expression, kind, tags, version)


def _given(selector: object) -> tuple[str, str]:
    if isinstance(selector, MessageSelector):
        return selector.expression, selector.kind
    if selector is None:
        return ALL, "TAG"
    if not isinstance(selector, str):
        raise ConfigError("selector", selector, f"expected {EXAMPLE}, or a MessageSelector")
    if SQL.search(selector):
        way_out = "use MessageSelector.by_sql(...), or MessageSelector.by_tag(...) for tags"
        raise ConfigError("selector", selector, f"it looks like an SQL condition: {way_out}")
    return selector, "TAG"
