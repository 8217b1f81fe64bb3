"""Parsing of bodies into columns by a schema: json, avro or protobuf."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Final, cast

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructType

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.pipelines.formats import check_choice

VALUE: Final = "value"
BAD: Final = "bad"
CORRUPT: Final = "_corrupt"  # column for bodies that are not such JSON
PERMISSIVE: Final = {"mode": "PERMISSIVE"}
NO_JAR: Final = "'JavaPackage' object is not callable"  # py4j's message for a missing class


@settings
class BodySchema:
    """Format and schema of bodies.

    :param kind: ``json``, ``avro`` or ``protobuf``
    :param schema: json: columns, as ``"id long, name string"``; avro: the schema as JSON;
        protobuf: the file of the descriptor set of ``protoc --descriptor_set_out``
    :param message: protobuf: the name of the message type
    """

    kind: str
    schema: str
    message: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("kind", self.kind, _PARSERS)
        if not self.schema.strip():
            raise ConfigError("schema", self.schema, "is empty: give the schema of the bodies")
        if (self.kind == "protobuf") != (self.message is not None):
            raise ConfigError("message", self.message, "expected for protobuf, and only there")


def parse_bodies(messages: DataFrame, schema: BodySchema) -> DataFrame:
    """Add the columns *value*, a struct, and *bad*: whether the body does not match the schema.

    :raises ConfigError: the schema is invalid, or Spark lacks the jar for it
    """
    try:
        return _PARSERS[schema.kind](messages, schema)
    except TypeError as error:
        if NO_JAR not in str(error):
            raise
    except PySparkException as error:
        if "NOT_LOADED" not in (error.getCondition() or ""):
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            reason = f"not a schema for {schema.kind}: {first_line}"
            raise ConfigError("schema", schema.schema, reason) from error
    package = f"org.apache.spark:spark-{schema.kind}_2.13:{pyspark.__version__}"
    raise ConfigError("kind", schema.kind, f"Spark lacks the jar: add {package}")


def _json(messages: DataFrame, schema: BodySchema) -> DataFrame:
    # Spark ignores what follows the first JSON value: as an element of an array, a body has to be
    # one value.  Spark also replaces invalid UTF-8.
    text = F.col("body").cast("string")
    array = F.concat(F.lit(f'{{"{VALUE}": ['), text, F.lit("]}"))
    schema_text = f"{VALUE} array<struct<{schema.schema}>>, {CORRUPT} string"
    options = {**PERMISSIVE, "columnNameOfCorruptRecord": CORRUPT}
    read = messages.withColumn(VALUE, F.from_json(array, schema_text, options))
    values = F.col(VALUE)[VALUE]
    value = F.get(values, 0)
    is_one = (F.size(values) == 1) & value.isNotNull() & F.col(VALUE)[CORRUPT].isNull()
    good = F.coalesce(is_one & F.is_valid_utf8(text), F.lit(False))
    return read.withColumn(BAD, ~good).withColumn(VALUE, value)


def _avro(messages: DataFrame, schema: BodySchema) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    # Other bodies become a struct of nulls.  In a record around the schema, whose encoding is the
    # same, its only field is null then, while a record of nulls is not.
    field = f'{{"name": "{VALUE}", "type": {schema.schema}\n}}'
    record = f'{{"type": "record", "name": "rocketmq_body", "fields": [{field}]}}'
    value = from_avro(F.col("body"), record, PERMISSIVE)[VALUE]
    return messages.withColumn(VALUE, value).withColumn(BAD, F.col(VALUE).isNull())


def _protobuf(messages: DataFrame, schema: BodySchema) -> DataFrame:
    from pyspark.sql.protobuf.functions import from_protobuf

    body, message = F.col("body"), str(schema.message)
    value = from_protobuf(body, message, schema.schema, options=PERMISSIVE)
    read = messages.withColumn(VALUE, value)
    # Other bodies become a struct of nulls; so would an empty body, which brokers reject.
    names = cast("StructType", read.schema[VALUE].dataType).names
    nulls = [F.col(VALUE)[name].isNull() for name in names]
    return read.withColumn(BAD, reduce(and_, nulls, F.lit(True)))


_PARSERS: Final[dict[str, Callable[[DataFrame, BodySchema], DataFrame]]] = {
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
}
