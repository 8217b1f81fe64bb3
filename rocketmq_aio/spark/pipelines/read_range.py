"""From where to where a pipeline reads: words, times and offsets -> options of the source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import Range, nested
from rocketmq_aio.spark.options import values as values
from rocketmq_aio.spark.options.source_options import OPTIONS, Connection

START_WORDS: Final = ("earliest", "latest", "group")
END_WORDS: Final = ("latest",)


def connection_options(connection: Connection) -> dict[str, str]:
    """Return what *connection* says, as options; what is as by default is left out."""
    given = {f.name: getattr(connection, f.name) for f in fields(connection)}
    defaults = {f.name: f.default for f in fields(connection)}
    return {
        OPTIONS[name].name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value != defaults[name]
    }


def start_options(text: str) -> dict[str, str]:
    """Return the option that begins at *text*: a word, a time or offsets as JSON.

    :raises ConfigError: it is none of them
    """
    return _position("starting", text, START_WORDS)


def end_options(text: str) -> dict[str, str]:
    """Return the option that ends before *text*; see `start_options`."""
    return _position("ending", text, END_WORDS)


def _position(kind: str, text: str, words: Sequence[str]) -> dict[str, str]:
    plain = text.strip()
    if plain.lower() in words or plain.startswith("{"):
        return {f"{kind}Offsets": plain}
    option = f"{kind}Timestamp"
    try:
        return {option: str(values.instant(option, plain))}
    except ConfigError:
        reason = f"expected {', '.join(words)}, a time with zone as 2026-01-31T08:00:00Z, "
        raise ConfigError(option, text, reason + "milliseconds, or offsets as JSON") from None


def exact_options(ranges: Iterable[Range]) -> dict[str, str]:
    """Return the options that read just *ranges*, whatever happens to the topics meanwhile."""
    chosen = list(ranges)
    assigned: dict[str, dict[str, list[int]]] = {}
    for topic, broker, queue_id in sorted(each.queue for each in chosen):
        assigned.setdefault(topic, {}).setdefault(broker, []).append(queue_id)
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(nested({each.queue: each.start for each in chosen})),
        "endingOffsets": json.dumps(nested({each.queue: each.end for each in chosen})),
    }


def slices(ranges: Iterable[Range], most: int) -> Iterator[list[Range]]:
    """Cut *ranges* into lists of at most *most* offsets that follow one another.

    All queues go forward together, each by its share of what is left, so that what was stored
    at one time stays close; every offset is in one list.
    """
    left = [each for each in ranges if each.size > 0]
    while left:
        taken = _shares(left, most)
        yield [each._replace(end=each.start + n) for each, n in zip(left, taken, strict=True) if n]
        moved = [each._replace(start=each.start + n) for each, n in zip(left, taken, strict=True)]
        left = [each for each in moved if each.size > 0]


def _shares(ranges: Sequence[Range], most: int) -> list[int]:
    """Return how many offsets each range gives, rounding so that the sum is right."""
    total = sum(each.size for each in ranges)
    wanted = min(most, total)
    shares, before, given = [], 0, 0
    for each in ranges:
        before += each.size
        upto = before * wanted // total
        shares.append(upto - given)
        given = upto
    return shares


def merged(*options: Mapping[str, str]) -> dict[str, str]:
    """Return all *options* together.

    :raises ConfigError: one is given twice
    """
    found: dict[str, str] = {}
    for group in options:
        for name, text in group.items():
            if name.lower() in {each.lower() for each in found}:
                reason = "is set by the pipeline: leave it out of the further options"
                raise ConfigError(name, "...", reason)
            found[name] = text
    return found
