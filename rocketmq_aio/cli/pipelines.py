"""``rmq pipeline``: export, ingest, replay, load, dlq and lag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rocketmq_aio.cli.arguments import command
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.lag import LagArguments, show_lag
from rocketmq_aio.cli.output import progress
from rocketmq_aio.cli.pipeline_arguments import (
    RangeArguments,
    RunArguments,
    SelectionArguments,
    TargetArguments,
    from_file,
)
from rocketmq_aio.cli.session import pairs, session
from rocketmq_aio.cli.signals import Stop, stoppable
from rocketmq_aio.cli.summaries import show
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketmq_aio.spark.pipelines import BodySchema, Summary
    from rocketmq_aio.spark.pipelines.summary import Report

app = typer.Typer(
    help="Ready pipelines between topics and files. Exit codes: 0 done and complete, 1 counts do "
    "not add up, 2 wrong option, 3 failed, 130 stopped.",
    no_args_is_help=True,
)

BODIES: Final = "Bodies"


def on_spark(
    arguments: RunArguments,
    name: str,
    work: Callable[[SparkSession, Report, Stop], Summary],
) -> int:
    """Run *work* in a session, show its summary and return the exit code."""
    from rocketmq_aio.spark.pipelines.progress import JVM_ENDED
    from rocketmq_aio.spark.pipelines.summary import no_report

    bars = progress(wanted=not arguments.quiet)
    with session(arguments, name) as spark, stoppable() as stop, bars as shown:
        try:
            summary = work(spark, shown or no_report, stop)
        except JVM_ENDED as error:  # by the same signal, where somebody else started it
            if not stop():
                raise
            raise KeyboardInterrupt from error  # nobody is left to say how far it came
    show(summary, as_json=arguments.json)
    if summary.interrupted and summary.pipeline != "ingest":  # a stream ends like that
        return ExitCode.STOPPED
    return ExitCode.DONE if summary.complete else ExitCode.INCOMPLETE


# --- export -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ExportArguments(RunArguments, TargetArguments, SelectionArguments):
    """What `export` takes."""

    column: Annotated[
        list[str], typer.Option(help="Column of messages to keep; repeat it. All without.")
    ] = field(default_factory=list)


@command(app, "export", ExportArguments)
def _export(arguments: ExportArguments) -> int:
    """Write a range of topics to files or a table, and prove that all of it is there."""
    from rocketmq_aio.spark.pipelines import ExportSettings, export

    settings = ExportSettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        target=arguments.target(),
        columns=tuple(arguments.column),
    )
    arguments.check_format(arguments.format)
    return on_spark(
        arguments,
        "export",
        lambda spark, report, stop: export(
            spark, settings, dry_run=arguments.dry_run, stop=stop, report=report
        ),
    )


# --- ingest -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class IngestArguments(RunArguments, TargetArguments, SelectionArguments):
    """What `ingest` takes."""

    checkpoint: Annotated[
        str, typer.Option(help="Folder of Spark's progress; the same one goes on from there.")
    ]
    body_format: Annotated[
        str | None,
        typer.Option(help="json, avro or protobuf; without: as they are.", rich_help_panel=BODIES),
    ] = None
    body_schema: Annotated[
        str | None,
        typer.Option(
            help="json: 'id long, name string'; avro: the schema; either as @FILE; "
            "protobuf: the descriptor file.",
            rich_help_panel=BODIES,
        ),
    ] = None
    body_message: Annotated[
        str | None, typer.Option(help="protobuf: name of the type.", rich_help_panel=BODIES)
    ] = None
    bad_rows: Annotated[
        str | None,
        typer.Option(help="Folder for bodies that do not fit.", rich_help_panel=BODIES),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Read what is there, then end.")] = False
    every: Annotated[float, typer.Option(help="Seconds between two batches.")] = 10.0

    def bodies(self) -> BodySchema | None:
        """Return how bodies are read."""
        from rocketmq_aio.spark.pipelines import BodySchema

        if self.body_format is None:
            if self.body_schema is not None:
                raise ConfigError("kind", None, "is not given: say json, avro or protobuf")
            return None
        schema = from_file(self.body_schema or "")
        return BodySchema(kind=self.body_format, schema=schema, message=self.body_message)


@command(app, "ingest", IngestArguments)
def _ingest(arguments: IngestArguments) -> int:
    """Append what comes to files or a table; SIGINT and SIGTERM end it between two batches."""
    from rocketmq_aio.spark.pipelines import IngestSettings, ingest

    settings = IngestSettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        target=arguments.target(),
        checkpoint=arguments.checkpoint,
        body=arguments.bodies(),
        bad_rows=arguments.bad_rows,
        once=arguments.once,
        trigger_seconds=arguments.every,
    )
    arguments.check_format(arguments.format)
    return on_spark(
        arguments,
        "ingest",
        lambda spark, report, stop: ingest(
            spark, settings, dry_run=arguments.dry_run, stop=stop, report=report
        ),
    )


# --- replay -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ReplayArguments(RunArguments, SelectionArguments):
    """What `replay` takes."""

    to_topic: Annotated[
        str | None, typer.Option(help="Topic to send to; without: the message's own.")
    ] = None
    rate: Annotated[int | None, typer.Option(help="Messages a second at most.")] = None
    sink_option: Annotated[
        list[str], typer.Option(help="name=value: option of the sink; repeat it.")
    ] = field(default_factory=list)


@command(app, "replay", ReplayArguments)
def _replay(arguments: ReplayArguments) -> int:
    """Send a range of topics again; each copy says in COPIED_FROM which message it is one of."""
    from rocketmq_aio.spark.pipelines import ReplaySettings, replay

    settings = ReplaySettings(
        connection=arguments.connection(),
        selection=arguments.selection(),
        to=arguments.to_topic,
        rate=arguments.rate,
        options=pairs("--sink-option", arguments.sink_option),
    )
    return on_spark(
        arguments,
        "replay",
        lambda spark, report, stop: replay(
            spark, settings, dry_run=arguments.dry_run, stop=stop, report=report
        ),
    )


# --- load ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LoadArguments(RunArguments):
    """What `load` takes."""

    topic: Annotated[str, typer.Argument(help="Topic to send to.")]
    path: Annotated[str, typer.Argument(help="Files or folder to read.")]
    format: Annotated[
        str, typer.Option("--format", "-f", help="parquet, json, csv, orc, text ...")
    ] = "parquet"
    column: Annotated[
        list[str],
        typer.Option(
            help="COLUMN=NAME: column of a message, column of the files; body='*' takes the whole "
            "row as JSON; repeat it. Without: columns that are named alike."
        ),
    ] = field(default_factory=list)
    body: Annotated[str, typer.Option(help="plain or base64: bodies in the files.")] = "plain"
    schema: Annotated[
        str | None, typer.Option(help="Of the files: 'id long, name string', or @FILE.")
    ] = None
    file_option: Annotated[
        list[str], typer.Option(help="name=value: option of the format; repeat it.")
    ] = field(default_factory=list)
    sink_option: Annotated[
        list[str], typer.Option(help="name=value: option of the sink; repeat it.")
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
        columns=pairs("--column", arguments.column),
        body=arguments.body,
        schema=None if arguments.schema is None else from_file(arguments.schema),
        read_options=pairs("--file-option", arguments.file_option),
        options=pairs("--sink-option", arguments.sink_option),
    )
    arguments.check_format(arguments.format)
    return on_spark(
        arguments,
        "load",
        lambda spark, report, stop: load(
            spark, settings, dry_run=arguments.dry_run, stop=stop, report=report
        ),
    )


# --- dlq ----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class DeadLetterArguments(RunArguments, TargetArguments, RangeArguments):
    """What `dlq` takes."""

    of_group: Annotated[str, typer.Argument(metavar="GROUP", help="Whose dead letters.")]
    resend: Annotated[
        bool,
        typer.Option("--resend", help="Send each to the topic it came from, unless it was before."),
    ] = False


@command(app, "dlq", DeadLetterArguments)
def _dlq(arguments: DeadLetterArguments) -> int:
    """Count the dead letters of a group, write them to files or a table, send them back."""
    from rocketmq_aio.spark.pipelines import DeadLetterSettings, dead_letters

    written = arguments.path is not None or arguments.table is not None
    settings = DeadLetterSettings(
        connection=arguments.connection(),
        group=arguments.of_group,
        start=from_file(arguments.start),
        end=from_file(arguments.end),
        target=arguments.target() if written else None,
        resend=arguments.resend,
        fail_on_data_loss=not arguments.allow_loss,
    )
    arguments.check_format(arguments.format)
    return on_spark(
        arguments,
        "dlq",
        lambda spark, report, stop: dead_letters(
            spark, settings, dry_run=arguments.dry_run, stop=stop, report=report
        ),
    )


# --- lag ----------------------------------------------------------------------------------------


@command(app, "lag", LagArguments)
def _lag(arguments: LagArguments) -> int:
    """Show where a group (--group) is in its topics; Spark is not needed."""
    return show_lag(arguments)
