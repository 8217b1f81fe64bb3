"""``rmq pipeline``: export, ingest, replay, load, dlq and lag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketmq_aio.cli.arguments import command
from rocketmq_aio.cli.connection import ConnectionArguments
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.lag import LagArguments, show_lag
from rocketmq_aio.cli.output import OutputArguments, progress
from rocketmq_aio.cli.session import SparkArguments, parse_pairs, session
from rocketmq_aio.cli.signals import stop_flag
from rocketmq_aio.cli.summaries import show_summary
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines import BodySchema, Selection, Summary, Target

app = typer.Typer(
    help="Pipelines between topics and files. Exit codes: 0 done and complete, 1 counts do not "
    "add up, 2 wrong option, 3 failed, 130 stopped.",
    no_args_is_help=True,
)
_Message = partial(typer.Option, rich_help_panel="Messages")
_Target = partial(typer.Option, rich_help_panel="Target")
_Body = partial(typer.Option, rich_help_panel="Bodies")


# --- options of several pipelines ---------------------------------------------------------------


@dataclass(kw_only=True)
class RangeArguments:
    """Start and end of a range."""

    start: Annotated[
        str,
        _Message(
            "--from",
            help="earliest, group, latest (ingest), a time with zone, milliseconds, offsets as "
            "JSON, or @FILE.",
        ),
    ] = "earliest"
    end: Annotated[
        str,
        _Message(
            "--to",
            help="latest, a time with zone, milliseconds, offsets as JSON, or @FILE; exclusive.",
        ),
    ] = "latest"
    allow_loss: Annotated[
        bool, _Message("--allow-loss", help="Continue where messages have been deleted.")
    ] = False


@dataclass(kw_only=True)
class SelectionArguments(RangeArguments):
    """Selection of messages."""

    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPICS...", help="Names of topics.")
    ] = None
    pattern: Annotated[str | None, _Message(help="Regular expression, instead of topics.")] = None
    filter: Annotated[str, _Message(help="Tags, such as 'new || paid'.")] = "*"
    sql: Annotated[str | None, _Message(help="SQL92 condition, instead of --filter.")] = None
    source_option: Annotated[
        list[str], _Message(help="name=value: option of the source; repeatable.")
    ] = field(default_factory=list)

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
            options=parse_pairs("--source-option", self.source_option),
        )


@dataclass(kw_only=True)
class TargetArguments:
    """Target of written rows."""

    path: Annotated[str | None, _Target(help="Folder to write to.")] = None
    table: Annotated[str | None, _Target(help="Table, instead of --path.")] = None
    format: Annotated[
        str, _Target("--format", "-f", help="parquet, json, csv, orc, delta, iceberg ...")
    ] = "parquet"
    mode: Annotated[str, _Target(help="error, append or overwrite.")] = "error"
    partition_by: Annotated[str, _Target(help="Columns, joined by commas; '' for none.")] = (
        "storeDate"
    )
    body: Annotated[str | None, _Target(help="binary, base64 or text.")] = None
    target_option: Annotated[
        list[str], _Target(help="name=value: option of the format; repeatable.")
    ] = field(default_factory=list)

    def target(self) -> Target:
        """Return the target of the options."""
        from rocketmq_aio.spark.pipelines import Target

        return Target(
            path=self.path,
            table=self.table,
            format=self.format,
            mode=self.mode,
            partition_by=tuple(filter(None, self.partition_by.split(","))),
            body=self.body,
            options=parse_pairs("--target-option", self.target_option),
        )


@dataclass(kw_only=True)
class RunArguments(OutputArguments, SparkArguments, ConnectionArguments):
    """Options of every pipeline that runs on Spark."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show ranges and counts; change nothing.")
    ] = False


def read_value(text: str) -> str:
    """Return the text of the file after an ``@``, otherwise *text* itself.

    :raises ConfigError: the file cannot be read
    """
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except (OSError, UnicodeError) as error:
        reason = f"the file cannot be read ({type(error).__name__}): check path and permissions"
        raise ConfigError("@FILE", text, reason) from None


def run_pipeline(
    arguments: RunArguments, name: str, pipeline: Callable[..., Summary], settings: object
) -> int:
    """Run *pipeline* in a session, show its summary and return the exit code."""
    from rocketmq_aio.spark.pipelines.progress import JVM_ENDED
    from rocketmq_aio.spark.pipelines.summary import no_report

    if (format_name := getattr(arguments, "format", None)) is not None:
        arguments.check_format(format_name)
    bars = progress(wanted=not arguments.quiet)
    with session(arguments, name) as spark, stop_flag() as stop, bars as report:
        try:
            summary = pipeline(
                spark, settings, dry_run=arguments.dry_run, stop=stop, report=report or no_report
            )
        except JVM_ENDED as error:  # the signal also ended a JVM that was not started here
            if not stop():
                raise
            raise KeyboardInterrupt from error  # without the JVM there is no summary
    show_summary(summary, as_json=arguments.json)
    if summary.interrupted and summary.pipeline != "ingest":  # a stream always ends this way
        return ExitCode.STOPPED
    return ExitCode.DONE if summary.complete else ExitCode.INCOMPLETE


# --- export -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ExportArguments(RunArguments, TargetArguments, SelectionArguments):
    """Options of `export`."""

    column: Annotated[
        list[str], typer.Option(help="Column of messages to write; repeatable. Default: all.")
    ] = field(default_factory=list)


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


# --- ingest -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class IngestArguments(RunArguments, TargetArguments, SelectionArguments):
    """Options of `ingest`."""

    checkpoint: Annotated[
        str, typer.Option(help="Folder of Spark's progress; a later run with it continues.")
    ]
    body_format: Annotated[
        str | None, _Body(help="json, avro or protobuf; default: bodies are not parsed.")
    ] = None
    body_schema: Annotated[
        str | None,
        _Body(
            help="json: 'id long, name string'; avro: the schema; either as @FILE; "
            "protobuf: the descriptor file.",
        ),
    ] = None
    body_message: Annotated[str | None, _Body(help="protobuf: name of the type.")] = None
    bad_rows: Annotated[
        str | None, _Body(help="Folder for bodies that do not match the schema.")
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Read the stored messages, then end.")] = (
        False
    )
    every: Annotated[float, typer.Option(help="Interval of batches in seconds.")] = 10.0

    def body_options(self) -> BodySchema | None:
        """Return the schema of bodies."""
        from rocketmq_aio.spark.pipelines import BodySchema

        if self.body_format is None:
            if self.body_schema is not None:
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


# --- replay -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ReplayArguments(RunArguments, SelectionArguments):
    """Options of `replay`."""

    to_topic: Annotated[
        str | None, typer.Option(help="Topic to send to; default: the message's own.")
    ] = None
    rate: Annotated[int | None, typer.Option(help="Maximum of messages per second.")] = None
    sink_option: Annotated[
        list[str], typer.Option(help="name=value: option of the sink; repeatable.")
    ] = field(default_factory=list)


@command(app, "replay", ReplayArguments)
def _replay(arguments: ReplayArguments) -> int:
    """Send a range of topics again; the property COPIED_FROM names the original of each copy."""
    from rocketmq_aio.spark.pipelines import ReplaySettings, replay

    settings = ReplaySettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        to=arguments.to_topic,
        rate=arguments.rate,
        options=parse_pairs("--sink-option", arguments.sink_option),
    )
    return run_pipeline(arguments, "replay", replay, settings)


# --- load ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LoadArguments(RunArguments):
    """Options of `load`."""

    topic: Annotated[str, typer.Argument(help="Topic to send to.")]
    path: Annotated[str, typer.Argument(help="Files or folder to read.")]
    format: Annotated[
        str, typer.Option("--format", "-f", help="parquet, json, csv, orc, text ...")
    ] = "parquet"
    column: Annotated[
        list[str],
        typer.Option(
            help="COLUMN=NAME: column of a message, column of the files; body='*' writes the whole "
            "row as JSON; repeatable. Default: columns with the names of message columns."
        ),
    ] = field(default_factory=list)
    body: Annotated[str, typer.Option(help="plain or base64: bodies in the files.")] = "plain"
    schema: Annotated[
        str | None, typer.Option(help="Of the files: 'id long, name string', or @FILE.")
    ] = None
    file_option: Annotated[
        list[str], typer.Option(help="name=value: option of the format; repeatable.")
    ] = field(default_factory=list)
    sink_option: Annotated[
        list[str], typer.Option(help="name=value: option of the sink; repeatable.")
    ] = field(default_factory=list)


@command(app, "load", LoadArguments)
def _load(arguments: LoadArguments) -> int:
    """Send the rows of files to a topic."""
    from rocketmq_aio.spark.pipelines import LoadSettings, load

    settings = LoadSettings(
        connection=arguments.connection(),
        topic=arguments.topic,
        path=arguments.path,
        format=arguments.format,
        columns=parse_pairs("--column", arguments.column),
        body=arguments.body,
        schema=None if arguments.schema is None else read_value(arguments.schema),
        read_options=parse_pairs("--file-option", arguments.file_option),
        options=parse_pairs("--sink-option", arguments.sink_option),
    )
    return run_pipeline(arguments, "load", load, settings)


# --- dlq ----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class DeadLetterArguments(RunArguments, TargetArguments, RangeArguments):
    """Options of `dlq`."""

    of_group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Consumer group of the dead letters.")
    ]
    resend: Annotated[
        bool,
        typer.Option("--resend", help="Send each to its original topic, unless already resent."),
    ] = False


@command(app, "dlq", DeadLetterArguments)
def _dlq(arguments: DeadLetterArguments) -> int:
    """Count the dead letters of a group, write them to files or a table, resend them."""
    from rocketmq_aio.spark.pipelines import DeadLetterSettings, dead_letters

    has_target = arguments.path is not None or arguments.table is not None
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


# --- lag ----------------------------------------------------------------------------------------


@command(app, "lag", LagArguments)
def _lag(arguments: LagArguments) -> int:
    """Show the lag of a group (--group) in its topics; needs no Spark."""
    return show_lag(arguments)
