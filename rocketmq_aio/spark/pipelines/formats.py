"""Names of formats, columns and choices, checked before a Spark session exists."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from rocketmq_aio.errors import ConfigError

KNOWN: Final = (
    *("avro", "binaryFile", "csv", "delta", "hudi", "iceberg", "jdbc"),
    *("json", "orc", "parquet", "text", "xml"),
)
FILE_FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
# Formats of Spark that are not proposed for a misspelled name.
OTHERS: Final = ("console", "image", "kafka", "libsvm", "memory", "noop")


def check_format(name: str) -> str:
    """Return the name as in `KNOWN`, because Spark accepts ``CSV``, too.

    :raises ConfigError: the format is misspelled; jars can add other unknown formats
    """
    known = {each.lower(): each for each in KNOWN}
    if _is_known(name):
        return known.get(name.lower(), name)
    if not name.strip():
        raise ConfigError("format", name, f"empty: expected a name such as {', '.join(KNOWN)}")
    if close := get_close_matches(name.lower(), known, 1, cutoff=0.7):
        raise ConfigError("format", name, f"unknown format; did you mean {known[close[0]]}?")
    return name


def check_built_in(name: str) -> None:
    """Raise `ConfigError` for a format that is neither known nor the name of a class."""
    if not _is_known(name):
        reason = f"unknown format; known are {', '.join(KNOWN)}: "
        way_out = "give --packages for the jar of another one, or the name of its class"
        raise ConfigError("format", name, reason + way_out)


def _is_known(name: str) -> bool:
    known = {each.lower() for each in (*KNOWN, *OTHERS)}
    return name.lower() in known or "." in name  # a name with a dot is a class


def check_columns(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` if one of the columns *names* is not *known*."""
    for name in names:
        if name not in known:
            reason = f"messages have no such column; they have {', '.join(known)}"
            raise ConfigError("columns", name, reason)


def check_choice(setting: str, value: str, allowed: Iterable[str]) -> None:
    """Raise `ConfigError` if *value* is not *allowed*."""
    if value not in allowed:
        raise ConfigError(setting, value, f"expected one of {', '.join(allowed)}")
