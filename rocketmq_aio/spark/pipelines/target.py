"""Where rows are written to: files or a table, and how messages look there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it
from pyspark.sql.types import StringType, StructType

from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.pipelines.formats import check_format

TEXT_FORMATS: Final = frozenset({"csv", "json"})
MODES: Final = ("error", "append", "overwrite")
BODIES: Final = ("binary", "base64", "text")
# RFC 4180, so that every text comes back as it was; Spark would trim, and escape by backslashes.
# A field without quotes is missing, one of quotes only is an empty text: the reader takes a missing
# one for a text first, which has to be none that there is.
MISSING: Final = "\ue000\ufffe"
CSV: Final = {
    "header": "true",
    "escape": '"',
    "multiLine": "true",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    "nullValue": MISSING,
    "emptyValue": "",
}
# With one end of rows the reader need not guess it.
CSV_WRITTEN: Final = {**CSV, "lineSep": "\n", "nullValue": "", "emptyValue": '""'}
CSV_READ: Final = {**CSV, "lineSep": "\n"}
DATE: Final = "storeDate"
NO_NUL: Final = (
    "a text holds U+0000, which is lost in csv: use another format, or base64 for bodies"
)
NO_TEXT: Final = "a body is not UTF-8: write bodies with --body base64"
COORDINATES: Final = ("topic", "brokerName", "queueId", "queueOffset")


@settings
class Target:
    """Files below *path*, or the *table*.

    :param format: a format that this Spark has: parquet, json, csv, orc, delta, iceberg ...
    :param mode: what happens when there is something already: ``error``, ``append`` or
        ``overwrite``
    :param partition_by: columns that files are laid out by; ``storeDate`` is the date of the
        store time, in the time zone of the session
    :param body: how bodies are written: ``binary``, ``base64`` or ``text`` (UTF-8; other bytes
        are an error); None: as they are where the format can, else base64
    :param options: of the format, such as ``compression``
    """

    path: str | None = None
    table: str | None = None
    format: str = "parquet"
    mode: str = "error"
    partition_by: tuple[str, ...] = (DATE,)
    body: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.table is None):
            raise ConfigError("target", self.path, "give a path or a table, one of them")
        check_format(self.format)
        if self.mode not in MODES:
            raise ConfigError("mode", self.mode, f"expected one of {', '.join(MODES)}")
        if self.body is not None and self.body not in BODIES:
            raise ConfigError("body", self.body, f"expected one of {', '.join(BODIES)}")
        if self.body == "binary" and self.format == "csv":
            raise ConfigError("body", self.body, "csv holds text only: use base64 or text")

    @property
    def name(self) -> str:
        """The path or the table."""
        return str(self.path or self.table)


def laid_out(messages: DataFrame, target: Target) -> DataFrame:
    """Return *messages* as they look in *target*: bodies, properties, and the date."""
    changed: dict[str, Column] = {}
    if "storeTimestamp" in messages.columns and DATE in target.partition_by:
        changed[DATE] = F.to_date("storeTimestamp")
    if "body" in messages.columns:
        changed["body"] = _BODIES[_body_form(target)](F.col("body"))
    if "properties" in messages.columns and target.format == "csv":
        changed["properties"] = F.to_json("properties")
    rows = messages.withColumns(changed) if changed else messages
    return _without_nul(rows) if target.format == "csv" else rows


def _without_nul(rows: DataFrame) -> DataFrame:
    texts = [each.name for each in rows.schema if isinstance(each.dataType, StringType)]
    refused = F.raise_error(F.lit(NO_NUL))
    return rows.withColumns(
        {
            name: F.when(F.contains(name, F.lit("\0")), refused).otherwise(F.col(name))
            for name in texts
        }
    )


def _body_form(target: Target) -> str:
    return target.body or ("base64" if target.format in TEXT_FORMATS else "binary")


_BODIES: Final[dict[str, Callable[[Column], Column]]] = {
    "binary": lambda body: body,
    "base64": F.base64,
    "text": lambda body: _text(body.cast("string")),
}


def _text(body: Column) -> Column:
    """Return *body*; bytes that are no text fail the job, with the way out."""
    refused = F.raise_error(F.lit(NO_TEXT))
    return F.when(body.isNull() | F.is_valid_utf8(body), body).otherwise(refused)


def write(rows: DataFrame, target: Target) -> None:
    """Write *rows*; `pyspark.errors.PySparkException` when that fails."""
    writer = rows.write.format(target.format).mode(target.mode).options(**format_options(target))
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    if target.table is not None:
        writer.saveAsTable(target.table)
    else:
        writer.save(target.path)


def stored(spark: SparkSession, target: Target, schema: StructType) -> DataFrame:
    """Return what *target* holds; *schema* is that of the rows written, for formats without one."""
    if target.table is not None:
        return spark.read.table(target.table)
    options = format_options(target, CSV_READ)
    reader = spark.read.format(target.format).options(**options)
    if target.format in TEXT_FORMATS:
        reader = reader.schema(schema)
    return reader.load(target.path)


def format_options(target: Target, csv: Mapping[str, str] = CSV_WRITTEN) -> dict[str, str]:
    """Return the options of the format; csv is RFC 4180 with a header unless told otherwise."""
    return overridden(csv if target.format == "csv" else {}, target.options)


def overridden(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return *given* and those of *defaults* that it does not name, in whatever case."""
    named = {name.lower() for name in given}
    return {**{n: text for n, text in defaults.items() if n.lower() not in named}, **given}
