"""Names of file and table formats, checked before a Spark session exists."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from rocketmq_aio.errors import ConfigError

KNOWN: Final = (
    *("avro", "binaryFile", "csv", "delta", "hudi", "iceberg", "jdbc"),
    *("json", "orc", "parquet", "text", "xml"),
)


def check_format(name: str) -> None:
    """Refuse a misspelled format; jars may add others, which only Spark knows.

    :raises ConfigError: *name* is close to the name of a known format
    """
    known = {each.lower(): each for each in KNOWN}
    if name.lower() in known or "." in name:  # with a dot it is the name of a class
        return
    if not name.strip():
        raise ConfigError("format", name, f"empty: expected a name such as {', '.join(KNOWN)}")
    if close := get_close_matches(name.lower(), known, 1, cutoff=0.7):
        raise ConfigError("format", name, f"unknown format; did you mean {known[close[0]]}?")
