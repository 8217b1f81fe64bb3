"""Options shared by pipeline commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rocketmq_aio.cli.connection import ConnectionArguments
from rocketmq_aio.cli.output import OutputArguments
from rocketmq_aio.cli.session import SparkArguments, pairs
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines import Selection, Target

SELECTION: Final = "Messages"
TARGET: Final = "Target"


@dataclass(kw_only=True)
class RangeArguments:
    """Options for a range of offsets."""

    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, group, latest (ingest), a time with zone, milliseconds, offsets as "
            "JSON, or @FILE.",
            rich_help_panel=SELECTION,
        ),
    ] = "earliest"
    end: Annotated[
        str,
        typer.Option(
            "--to",
            help="latest, a time with zone, milliseconds, offsets as JSON, or @FILE; exclusive.",
            rich_help_panel=SELECTION,
        ),
    ] = "latest"
    allow_loss: Annotated[
        bool,
        typer.Option(
            "--allow-loss", help="Continue if messages are gone.", rich_help_panel=SELECTION
        ),
    ] = False


@dataclass(kw_only=True)
class SelectionArguments(RangeArguments):
    """Options that select messages."""

    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPICS...", help="Names of topics.")
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option(help="Regular expression, instead of topics.", rich_help_panel=SELECTION),
    ] = None
    filter: Annotated[
        str, typer.Option(help="Tags, such as 'new || paid'.", rich_help_panel=SELECTION)
    ] = "*"
    sql: Annotated[
        str | None,
        typer.Option(help="SQL92 condition, instead of --filter.", rich_help_panel=SELECTION),
    ] = None
    source_option: Annotated[
        list[str],
        typer.Option(
            help="name=value: option of the source; repeat it.", rich_help_panel=SELECTION
        ),
    ] = field(default_factory=list)

    def selection(self) -> Selection:
        """Return the selection."""
        from rocketmq_aio.spark.pipelines import Selection

        return Selection(
            topics=tuple(self.topics or ()),
            pattern=self.pattern,
            start=from_file(self.start),
            end=from_file(self.end),
            expression=self.filter,
            sql=self.sql,
            fail_on_data_loss=not self.allow_loss,
            options=pairs("--source-option", self.source_option),
        )


@dataclass(kw_only=True)
class TargetArguments:
    """Options for the target."""

    path: Annotated[
        str | None, typer.Option(help="Folder to write to.", rich_help_panel=TARGET)
    ] = None
    table: Annotated[
        str | None, typer.Option(help="Table, instead of --path.", rich_help_panel=TARGET)
    ] = None
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="parquet, json, csv, orc, delta, iceberg ...",
            rich_help_panel=TARGET,
        ),
    ] = "parquet"
    mode: Annotated[
        str, typer.Option(help="error, append or overwrite.", rich_help_panel=TARGET)
    ] = "error"
    partition_by: Annotated[
        str,
        typer.Option(help="Columns, joined by commas; '' for none.", rich_help_panel=TARGET),
    ] = "storeDate"
    body: Annotated[
        str | None, typer.Option(help="binary, base64 or text.", rich_help_panel=TARGET)
    ] = None
    target_option: Annotated[
        list[str],
        typer.Option(help="name=value: option of the format; repeat it.", rich_help_panel=TARGET),
    ] = field(default_factory=list)

    def target(self) -> Target:
        """Return the target."""
        from rocketmq_aio.spark.pipelines import Target

        return Target(
            path=self.path,
            table=self.table,
            format=self.format,
            mode=self.mode,
            partition_by=tuple(filter(None, self.partition_by.split(","))),
            body=self.body,
            options=pairs("--target-option", self.target_option),
        )


@dataclass(kw_only=True)
class RunArguments(OutputArguments, SparkArguments, ConnectionArguments):
    """Options of every pipeline on Spark."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show ranges and counts; change nothing.")
    ] = False


def from_file(text: str) -> str:
    """Return the content of the file after an ``@``, or *text* itself.

    :raises ConfigError: the file cannot be read
    """
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except (OSError, UnicodeError) as error:
        reason = f"the file cannot be read ({type(error).__name__}): check path and rights"
        raise ConfigError("@FILE", text, reason) from None
