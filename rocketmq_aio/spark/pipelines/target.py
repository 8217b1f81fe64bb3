"""Target of written rows: files or a table, and the form of messages there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StringType, StructType

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.pipelines.formats import check_choice, check_format

TEXT_FORMATS: Final = frozenset({"csv", "json"})
READ_BY_SCHEMA: Final = TEXT_FORMATS | {"orc", "parquet"}
MODES: Final = ("error", "append", "overwrite")
# RFC 4180, so that texts are read back unchanged; Spark would trim and escape them.
# An empty field is a missing value, a quoted empty field an empty text. The reader replaces a
# missing value by the text MISSING first, which must not occur in files.
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
# With a fixed line separator the reader does not have to detect it.
CSV_WRITTEN: Final = {**CSV, "lineSep": "\n", "nullValue": "", "emptyValue": '""'}
CSV_READ: Final = {**CSV, "lineSep": "\n"}
DATE: Final = "storeDate"
NO_NUL: Final = "a text holds U+0000, which is lost in csv: use another format, or base64 bodies"
NO_TEXT: Final = "a body is not UTF-8: write bodies with --body base64"
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"  # in paths, in place of a missing value
NO_FOLDER: Final = (
    f"a value of a partition column is {NULL_FOLDER}, which is read back as a missing value: leave "
    "that column out of the partition columns"
)
COORDINATES: Final = ("topic", "brokerName", "queueId", "queueOffset")


@settings
class Target:
    """Files in *path*, or the *table*.

    :param format: a format that Spark has: parquet, json, csv, orc, delta, iceberg ...
    :param mode: what to do if the target exists: ``error``, ``append`` or ``overwrite``
    :param partition_by: columns to partition files by; ``storeDate`` is the date of the store
        time, in the time zone of the session
    :param body: form of bodies: ``binary``, ``base64`` or ``text`` (UTF-8; other bytes are an
        error); None: binary, or base64 in csv and json
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
        check_fields(self)
        given = (self.path or self.table or "").strip()
        if (self.path is None) == (self.table is None) or not given:
            raise ConfigError("target", self.path, "give a path or a table, one of them")
        object.__setattr__(self, "format", check_format(self.format))
        check_choice("mode", self.mode, MODES)
        if self.body is not None:
            check_choice("body", self.body, _BODIES)
        if self.body == "binary" and self.format == "csv":
            raise ConfigError("body", self.body, "csv holds text only: use base64 or text")

    def check_partitions(self, columns: Iterable[str]) -> None:
        """Raise `ConfigError` if a partition column is neither the date nor one of *columns*."""
        known = {each.lower(): each for each in columns}  # Spark ignores the case, too
        for name in self.partition_by:
            if name != DATE and name.lower() not in known:
                reason = f"no such column is written; there are {', '.join(known.values())}, {DATE}"
                raise ConfigError("partition_by", name, reason)

    @property
    def name(self) -> str:
        """The path or the table."""
        return str(self.path or self.table)


def prepare_rows(messages: DataFrame, target: Target) -> DataFrame:
    """Return *messages* in the form of *target*: bodies, properties, and the date."""
    changed: dict[str, Column] = {}
    if "storeTimestamp" in messages.columns and DATE in target.partition_by:
        changed[DATE] = F.to_date("storeTimestamp")
    if "body" in messages.columns:
        form = target.body or ("base64" if target.format in TEXT_FORMATS else "binary")
        changed["body"] = _BODIES[form](F.col("body"))
    if "properties" in messages.columns and target.format == "csv":
        changed["properties"] = F.to_json("properties")
    rows = messages.withColumns(changed) if changed else messages
    texts = [each.name for each in rows.schema if isinstance(each.dataType, StringType)]
    if target.format == "csv":
        rows = _reject(rows, texts, lambda text: F.contains(text, F.lit("\0")), NO_NUL)
    folders = {name.lower() for name in target.partition_by}
    by_folder = [name for name in texts if name.lower() in folders]
    return _reject(rows, by_folder, lambda text: text == NULL_FOLDER, NO_FOLDER)


def _reject(
    rows: DataFrame, names: Iterable[str], is_wrong: Callable[[Column], Column], reason: str
) -> DataFrame:
    """Return *rows*; a text for which *is_wrong* fails the job with *reason*."""
    fail = F.raise_error(F.lit(reason))
    checked = {n: F.when(is_wrong(F.col(n)), fail).otherwise(F.col(n)) for n in names}
    return rows.withColumns(checked) if checked else rows


_BODIES: Final[dict[str, Callable[[Column], Column]]] = {
    "binary": lambda body: body,
    "base64": F.base64,
    "text": lambda body: _text(body.cast("string")),
}


def _text(body: Column) -> Column:
    """Return *body*; bytes that are not UTF-8 fail the job."""
    return F.when(body.isNull() | F.is_valid_utf8(body), body).otherwise(
        F.raise_error(F.lit(NO_TEXT))
    )


def write_rows(rows: DataFrame, target: Target) -> None:
    """Write *rows*."""
    writer = rows.write.format(target.format).mode(target.mode).options(**format_options(target))
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    if target.table is not None:
        writer.saveAsTable(target.table)
    else:
        writer.save(target.path)


def read_back(spark: SparkSession, target: Target, schema: StructType) -> DataFrame:
    """Return the rows in *target*; files of Spark's own formats are read by *schema*.

    Otherwise a text such as 007 in a partition column would become a number.
    """
    if target.table is not None:
        return spark.read.table(target.table)
    reader = spark.read.format(target.format).options(**format_options(target, CSV_READ))
    if target.format in READ_BY_SCHEMA and len(schema):
        reader = reader.schema(schema)
    return reader.load(target.path)


def format_options(target: Target, csv: Mapping[str, str] = CSV_WRITTEN) -> dict[str, str]:
    """Return the options of the format; csv is RFC 4180 with a header by default."""
    return with_defaults(csv if target.format == "csv" else {}, target.options)


def with_defaults(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return *given* and the missing ones of *defaults*; names are case-insensitive."""
    named = {name.lower() for name in given}
    return {**{n: text for n, text in defaults.items() if n.lower() not in named}, **given}
