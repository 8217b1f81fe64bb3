"""Exceptions that the model raises; `rocketmq_aio.errors` has them all."""

from __future__ import annotations

from typing import Final

REMARK_SHOWN: Final = 300  # a remark can hold a whole Java stack trace; the attribute keeps it all


def shown(text: str | None) -> str:
    """Return *text* from the network on one line and shortened, safe to print in a log."""
    text = text or ""
    cleaned = "".join(c if c.isprintable() else " " for c in text[:REMARK_SHOWN])
    return cleaned if len(text) <= REMARK_SHOWN else cleaned + "..."


class RocketMQError(Exception):
    """Base of everything this package raises on its own account.

    All of them can be copied and pickled, as process pools and task queues do.
    """

    def __reduce__(self) -> tuple[object, ...]:
        # By default an exception is made again from its message, which is not what it takes.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[RocketMQError], args: tuple[object, ...], facts: dict[str, object]
) -> RocketMQError:
    error = kind.__new__(kind)
    error.args = args  # by hand: an OSError would not take them from __new__
    error.__dict__.update(facts)
    return error


class ConfigError(RocketMQError, ValueError):
    """A setting or an argument is wrong; nothing was sent."""

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(f"{setting}={value!r}: {reason}")
        self.setting = setting
        self.value = value
        self.reason = reason


class InvalidMessageError(RocketMQError, ValueError):
    """The message breaks a rule of the broker (topic, size, property); nothing was sent."""

    def __init__(self, topic: object, reason: str) -> None:
        of_topic = "" if topic is None else f" for topic {topic!r}"
        super().__init__(f"message{of_topic}: {reason}")
        self.topic = topic
        self.reason = reason


class CodecError(RocketMQError):
    """These bytes are not RocketMQ; ``field`` at byte ``position`` is what cannot be read."""

    def __init__(self, field: str, position: int, reason: str) -> None:
        super().__init__(f"{field} at byte {position}: {reason}")
        self.field = field
        self.position = position
        self.reason = reason


class PayloadError(RocketMQError, ValueError):
    """A codec cannot read a body, or write a value: trying again changes nothing."""

    def __init__(self, codec: str, reason: str) -> None:
        super().__init__(f"{shown(codec)}: {shown(reason)}")
        self.codec = codec
        self.reason = reason
