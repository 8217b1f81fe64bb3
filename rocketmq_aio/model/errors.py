"""Exceptions that the model raises; `rocketmq_aio.errors` exports them with all others."""

from __future__ import annotations

import pickle
from typing import Any, Final

REMARK_SHOWN: Final = 300  # a remark can be a Java stack trace; the attribute has it all


def shown(text: str | None) -> str:
    """Return *text* from the network, or of a caller, on one line, shortened and printable."""
    text = text or ""
    cleaned = "".join(c if c.isprintable() else " " for c in text[:REMARK_SHOWN])
    return cleaned if len(text) <= REMARK_SHOWN else cleaned + "..."


def repr_of(value: object) -> str:
    """Return ``repr(value)`` as `shown`; the type if that raises, as code of applications may."""
    try:
        return shown(repr(value))
    except Exception:  # noqa: BLE001 - of the application
        return type(value).__name__


def text_of(error: BaseException) -> str:
    """Return type and message of what the application raised; only the type if it has no text."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - of the application, too
        return kind


class CopyableException(Exception):  # noqa: N818 - also of those that are no errors
    """Base of exceptions that can be copied and pickled, whatever their constructors take."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # The default calls the class with the message, which __init__ does not take.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[CopyableException], args: tuple[object, ...], facts: dict[str, object]
) -> CopyableException:
    error = kind.__new__(kind)
    error.args = args  # explicitly: OSError.__new__ ignores them
    error.__dict__.update(facts)
    return error


class RocketMQError(CopyableException):
    """Base of all exceptions of this package; they can be copied and pickled."""


class ConfigError(RocketMQError, ValueError):
    """A setting or an argument is invalid; nothing was sent."""

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(f"{setting}={repr_of(value)}: {reason}")
        self.setting = setting
        self.value = value
        self.reason = reason

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        restore, (kind, args, facts) = super().__reduce__()
        try:
            pickle.dumps(self.value)
        except Exception:  # noqa: BLE001 - of any object that was given
            facts = {**facts, "value": repr_of(self.value)}
        return restore, (kind, args, facts)


class InvalidMessageError(RocketMQError, ValueError):
    """The broker would reject the message (topic, size, property); nothing was sent."""

    def __init__(self, topic: object, reason: str) -> None:
        of_topic = "" if topic is None else f" for topic {repr_of(topic)}"
        super().__init__(f"message{of_topic}: {reason}")
        self.topic = topic
        self.reason = reason


class CodecError(RocketMQError):
    """Received bytes cannot be decoded: ``field``, at byte ``position``."""

    def __init__(self, field: str, position: int, reason: str) -> None:
        # The reason may quote what was received; tracebacks in logs have the message.
        super().__init__(f"{field} at byte {position}: {shown(reason)}")
        self.field = field
        self.position = position
        self.reason = reason


class PayloadError(RocketMQError, ValueError):
    """A codec cannot decode a body or encode a value: retrying does not help."""

    def __init__(self, codec: str, reason: str) -> None:
        super().__init__(f"{shown(codec)}: {shown(reason)}")
        self.codec = codec
        self.reason = reason
