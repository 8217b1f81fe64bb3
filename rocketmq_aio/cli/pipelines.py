"""``rmq pipeline``: export, ingest, replay, load, dlq and lag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.connection import ConnectionArguments
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.lag import LagArguments, show_lag
from rocketmq_aio.cli.output import OutputArguments, progress
from rocketmq_aio.cli.session import SparkArguments, parse_options, session
from rocketmq_aio.cli.stop_flag import stop_flag
from rocketmq_aio.cli.summaries import show_summary
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines import BodySchema, Selection, Summary, Target

app = Group(
    "pipeline",
    "Pipelines between topics and files. Exit codes: 0 done and complete, 1 counts do not "
    "add up, 2 wrong option, 3 failed, 130 stopped.",
)
_message = partial(option, panel="Messages")
_target = partial(option, panel="Target")
_body = partial(option, panel="Bodies")


@options
class RangeArguments:
    """Start and end of a range."""

    start: str = _message(
        "earliest, group, latest (ingest), a time with zone, milliseconds, offsets as JSON, or "
        "@FILE.",
        "--from",
        default="earliest",
    )
    end: str = _message(
        "latest, a time with zone, milliseconds, offsets as JSON, or @FILE; exclusive.",
        "--to",
        default="latest",
    )
    allow_loss: bool = _message("Continue where messages have been deleted.", default=False)


@options
class SelectionArguments(RangeArguments):
    """Selection of messages."""

    topics: list[str] | None = argument("Names of topics.", "TOPICS", default=None)
    pattern: str | None = _message("Regular expression, instead of topics.")
    filter: str = _message("Tags, such as 'new || paid'.", default="*")
    sql: str | None = _message("SQL92 condition, instead of --filter.")
    source_option: list[str] = _message("name=value: option of the source; repeatable.", default=())

    def selection(self) -> Selection:
        """Return the selection of the options."""
        from rocketmq_aio.spark.pipelines import Selection

        return Selection(
            topics=tuple(self.topics or ()),
            pattern=self.pattern,
            start=read_value(self.start),
            end=read_value(self.end),
            expression=self.filter,
            sql=self.sql,
            fail_on_data_loss=not self.allow_loss,
            options=parse_options("--source-option", self.source_option),
        )


@options
class TargetArguments:
    """Target of written rows."""

    path: str | None = _target("Folder to write to.")
    table: str | None = _target("Table, instead of --path.")
    format: str = _target(
        "parquet, json, csv, orc, delta, iceberg ...", "--format", "-f", default="parquet"
    )
    mode: str = _target("error, append or overwrite.", default="error")
    partition_by: str = _target("Columns, joined by commas; '' for none.", default="storeDate")
    body: str | None = _target("binary, base64 or text.")
    target_option: list[str] = _target("name=value: option of the format; repeatable.", default=())

    def target(self) -> Target:
        """Return the target of the options."""
        from rocketmq_aio.spark.pipelines import Target

        return Target(
            path=self.path,
            table=self.table,
            format=self.format,
            mode=self.mode,
            partition_by=tuple(filter(None, map(str.strip, self.partition_by.split(",")))),
            body=self.body,
            options=parse_options("--target-option", self.target_option),
        )


@options
class RunArguments(OutputArguments, SparkArguments, ConnectionArguments):
    """Options of every pipeline that runs on Spark."""

    dry_run: bool = option("Show ranges and counts; change nothing.", default=False)


def read_value(text: str) -> str:
    """Return the text of the file after an ``@`` (`ConfigError` if unreadable), else *text*."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = f"the file cannot be read ({type(error).__name__}): check path and permissions"
        raise ConfigError("@FILE", text, reason) from None


def run_pipeline(
    arguments: RunArguments, name: str, pipeline: Callable[..., Summary], settings: object
) -> int:
    """Run *pipeline* in a session, show its summary and return the exit code."""
    from rocketmq_aio.spark.pipelines.progress import JVM_ENDED

    if (format_name := getattr(arguments, "format", None)) is not None:
        arguments.check_format(format_name)
    bars = progress(wanted=not arguments.quiet)
    with session(arguments, name) as spark, stop_flag() as stop, bars as report:
        try:
            summary = pipeline(spark, settings, dry_run=arguments.dry_run, stop=stop, report=report)
        except JVM_ENDED as error:  # the signal also ended a JVM that was not started here
            if not stop():
                raise
            raise KeyboardInterrupt from error  # without the JVM there is no summary
    show_summary(summary, as_json=arguments.json)
    is_endless = summary.pipeline == "ingest" and not getattr(settings, "once", False)
    if summary.interrupted and not is_endless:  # an endless one always ends this way
        return ExitCode.STOPPED
    return ExitCode.DONE if summary.complete else ExitCode.INCOMPLETE


@options
class ExportArguments(RunArguments, TargetArguments, SelectionArguments):
    column: list[str] = option("Column of messages to write; repeatable. Default: all.", default=())


@command(app, "export", ExportArguments)
def _export(arguments: ExportArguments) -> int:
    """Write a range of topics to files or a table, and verify the row counts."""
    from rocketmq_aio.spark.pipelines import ExportSettings, export

    settings = ExportSettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        target=arguments.target(),
        columns=tuple(arguments.column),
    )
    return run_pipeline(arguments, "export", export, settings)


@options
class IngestArguments(RunArguments, TargetArguments, SelectionArguments):
    checkpoint: str = option(
        "Folder of Spark's progress; a later run with it continues.", default=MISSING
    )
    body_format: str | None = _body("json, avro or protobuf; default: bodies are not parsed.")
    body_schema: str | None = _body(
        "json: 'id long, name string'; avro: the schema; either as @FILE; "
        "protobuf: the descriptor file."
    )
    body_message: str | None = _body("protobuf: name of the type.")
    bad_rows: str | None = _body("Folder for bodies that do not match the schema.")
    once: bool = option("Read the stored messages, then end.", default=False)
    every: float = option("Interval of batches in seconds.", default=10.0, min=0)

    def body_options(self) -> BodySchema | None:
        """Return the schema of bodies."""
        from rocketmq_aio.spark.pipelines import BodySchema

        if self.body_format is None:
            if (self.body_schema, self.body_message) != (None, None):
                raise ConfigError("kind", None, "is not given: set it to json, avro or protobuf")
            return None
        schema = read_value(self.body_schema or "")
        return BodySchema(kind=self.body_format, schema=schema, message=self.body_message)


@command(app, "ingest", IngestArguments)
def _ingest(arguments: IngestArguments) -> int:
    """Append new messages to files or a table; SIGINT and SIGTERM end it between two batches."""
    from rocketmq_aio.spark.pipelines import IngestSettings, ingest

    settings = IngestSettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        target=arguments.target(),
        checkpoint=arguments.checkpoint,
        body=arguments.body_options(),
        bad_rows=arguments.bad_rows,
        once=arguments.once,
        trigger_seconds=arguments.every,
    )
    return run_pipeline(arguments, "ingest", ingest, settings)


@options
class ReplayArguments(RunArguments, SelectionArguments):
    to_topic: str | None = option("Topic to send to; default: the message's own.")
    rate: int | None = option("Maximum of messages per second.")
    sink_option: list[str] = option("name=value: option of the sink; repeatable.", default=())


@command(app, "replay", ReplayArguments)
def _replay(arguments: ReplayArguments) -> int:
    """Send a range of topics again; the property COPIED_FROM names the original of each copy."""
    from rocketmq_aio.spark.pipelines import ReplaySettings, replay

    settings = ReplaySettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        to=arguments.to_topic,
        rate=arguments.rate,
        options=parse_options("--sink-option", arguments.sink_option),
    )
    return run_pipeline(arguments, "replay", replay, settings)


@options
class LoadArguments(RunArguments):
    topic: str = argument("Topic to send to.")
    path: str = argument("Files or folder to read.")
    format: str = option("parquet, json, csv, orc, text ...", "--format", "-f", default="parquet")
    column: list[str] = option(
        "COLUMN=NAME: column of a message, column of the files; body='*' writes the whole row as "
        "JSON; repeatable. Default: columns with the names of message columns.",
        default=(),
    )
    body: str = option("plain or base64: bodies in the files.", default="plain")
    schema: str | None = option("Of the files: 'id long, name string', or @FILE.")
    file_option: list[str] = option("name=value: option of the format; repeatable.", default=())
    sink_option: list[str] = option("name=value: option of the sink; repeatable.", default=())


@command(app, "load", LoadArguments)
def _load(arguments: LoadArguments) -> int:
    """Send the rows of files to a topic."""
    from rocketmq_aio.spark.pipelines import LoadSettings, load

    settings = LoadSettings(
        connection=arguments.connection(),
        topic=arguments.topic,
        path=arguments.path,
        format=arguments.format,
        columns=parse_options("--column", arguments.column),
        body=arguments.body,
        schema=None if arguments.schema is None else read_value(arguments.schema),
        read_options=parse_options("--file-option", arguments.file_option),
        options=parse_options("--sink-option", arguments.sink_option),
    )
    return run_pipeline(arguments, "load", load, settings)


@options
class DeadLetterArguments(RunArguments, TargetArguments, RangeArguments):
    of_group: str = argument("Consumer group of the dead letters.", "GROUP")
    resend: bool = option("Send each to its original topic, unless already resent.", default=False)


@command(app, "dlq", DeadLetterArguments)
def _dlq(arguments: DeadLetterArguments) -> int:
    """Count the dead letters of a group, write them to files or a table, resend them."""
    from rocketmq_aio.spark.pipelines import DeadLetterSettings, dead_letters

    has_target = arguments.path is not None or arguments.table is not None
    for name, default in vars(TargetArguments()).items():
        given = getattr(arguments, name)
        if not has_target and (given or None) != (default or None):
            raise ConfigError(name, given, "needs a target: give --path or --table, too")
    settings = DeadLetterSettings(
        connection=arguments.connection(),
        group=arguments.of_group,
        start=read_value(arguments.start),
        end=read_value(arguments.end),
        target=arguments.target() if has_target else None,
        resend=arguments.resend,
        fail_on_data_loss=not arguments.allow_loss,
    )
    return run_pipeline(arguments, "dlq", dead_letters, settings)


command(app, "lag", LagArguments)(show_lag)
