"""Row schema: the columns that a write accepts, and their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import types as T

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.names import send_fault

TEXT: Final = (T.StringType, T.VarcharType, T.CharType)
NUMBER: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def _is(*kinds: type[T.DataType]) -> Callable[[T.DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


def _is_texts(kind: T.DataType) -> bool:
    return isinstance(kind.elementType if isinstance(kind, T.ArrayType) else kind, TEXT)


def _is_text_map(kind: T.DataType) -> bool:
    return isinstance(kind, T.MapType) and all(
        isinstance(each, TEXT) for each in (kind.keyType, kind.valueType)
    )


# Name, expected type in words, and its check
COLUMNS: Final[Mapping[str, tuple[str, Callable[[T.DataType], bool]]]] = {
    "body": ("binary or string", _is(T.BinaryType, *TEXT)),
    "topic": ("string", _is(*TEXT)),
    "tags": ("string", _is(*TEXT)),
    "keys": ("string or array<string>", _is_texts),
    "properties": ("map<string,string>", _is_text_map),
    "flag": ("int", _is(*NUMBER)),
    "delayLevel": ("int", _is(*NUMBER)),
    "deliverTimestamp": ("timestamp, or bigint of epoch ms", _is(T.TimestampType, T.LongType)),
    "priority": ("int", _is(*NUMBER)),
    "shardingKey": ("string", _is(*TEXT)),
    "brokerName": ("string", _is(*TEXT)),
    "queueId": ("int", _is(*NUMBER)),
}
BY_LOWER: Final = {name.lower(): name for name in COLUMNS}  # column names are case-insensitive


def check_columns(schema: T.StructType, topic: str | None) -> None:
    """Raise `ConfigError`, with the column and the expected type, if rows cannot be sent."""
    given: dict[str, T.DataType] = {}
    for field in schema.fields:
        name = BY_LOWER.get(field.name.lower())
        if name is None:
            is_table = "storeTimestamp" in schema.names  # one that was created without columns
            way_out = "name those to write in CREATE TABLE" if is_table else "drop or rename it"
            reason = f"unknown column; known are {', '.join(COLUMNS)}: {way_out}"
            raise ConfigError("column", field.name, reason)
        if name in given:
            raise ConfigError("column", field.name, "duplicate: column names are case-insensitive")
        given[name] = field.dataType
        words, fits = COLUMNS[name]
        if not fits(field.dataType):
            kind = field.dataType.simpleString()
            raise ConfigError("column", name, f"its type is {kind}, expected {words}: cast it")
    _check_present(given, topic)


def _check_present(given: Mapping[str, T.DataType], topic: str | None) -> None:
    if "body" not in given:
        raise ConfigError("column", "body", "missing: add the message body as binary or string")
    if topic is None and "topic" not in given:
        raise ConfigError("topic", None, "not given: set the option, or add a column topic")
    if topic is not None and (fault := send_fault(topic)):
        raise ConfigError("topic", topic, fault)
    for name, other in (("brokerName", "queueId"), ("queueId", "brokerName")):
        if name in given and other not in given:
            raise ConfigError("column", name, f"needs the column {other} to name a queue")
