"""Parts shared by all targets: outcomes of decoders, and the rules for their errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar
from zlib import crc32

from rocketmq_aio.errors import CodecError, ConfigError, RocketMQError
from tests.fuzz.mutation import Mutator

T = TypeVar("T")

MAX_TEXT: Final = 2000  # characters of an error: it goes to logs and to brokers
Signature = Hashable  # of an outcome; an input with a new one becomes a seed
Mutation = Callable[[Mutator, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A decoder.

    :ivar seeds: valid inputs, made with a random generator
    :ivar mutate: returns a changed input; one of the seeds or of the kept inputs
    :ivar check: decodes an input and checks all rules; returns the signature of the outcome
    :ivar weight: its share of the inputs; less for those that cost more
    :ivar grows: bytes of memory per byte of input, at most
    """

    name: str
    seeds: Callable[[Random], Sequence[bytes]]
    mutate: Mutation
    check: Callable[[bytes], Signature]
    weight: int = 10
    grows: int = 200


def any_bytes(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
    return mutator.change(data, others)


def any_json(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
    return (
        mutator.change_json(data) if mutator.random.random() < 0.7 else mutator.change(data, others)
    )


def after_name(change: Mutation) -> Mutation:
    """Return a mutation that keeps the first line, a name."""

    def mutate(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        name, _, rest = data.partition(b"\n")
        return name + b"\n" + change(mutator, rest, [o.partition(b"\n")[2] for o in others[:20]])

    return mutate


def number_of(data: bytes, below: int) -> int:
    """Return a number below *below* that depends on all of *data*."""
    return crc32(data) % below


def outcome(
    call: Callable[..., T], *args: object, error: type[Exception] = CodecError, **named: object
) -> T | Exception:
    """Return the result of *call*, or the *error* that it documents; any other error passes."""
    try:
        return call(*args, **named)
    except error as raised:
        check_error(raised)
        return raised


def check_error(error: Exception) -> None:
    """Check that *error* can be logged: one printable line of limited length."""
    text = str(error)
    if isinstance(error, ConfigError):  # quotes what the application itself has set
        return
    assert len(text) <= MAX_TEXT, f"{len(text)} characters: {text[:100]!r}"
    if isinstance(error, RocketMQError):
        assert text.isprintable(), f"not printable: {text!r}"


def kind_of(result: object) -> Signature:
    """Return the kind of an outcome: the line that raised it, or the type of a result."""
    if not isinstance(result, Exception):
        return type(result).__name__
    trace = result.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = 0 if trace is None else trace.tb_lineno
    field = result.field if isinstance(result, CodecError) else ""
    return type(result).__name__, line, field
