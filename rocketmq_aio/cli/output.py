"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.spark.pipelines.summary import Report

WIDTH_OF_PIPES: Final = 160  # so that tables in files are not wrapped


@options
class OutputArguments:
    """Options of the output."""

    json: bool = option("Results as one line of JSON.", default=False)
    quiet: bool = option("No progress bars.", "--quiet", "-q", default=False)


def console(*, stderr: bool = False) -> Console:
    """Return the console of results, or on *stderr* that of errors, notes and progress."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = WIDTH_OF_PIPES
    return made


def print_error(text: str) -> None:
    """Print an error on one line."""
    console(stderr=True).print(Text(f"rmq: {text}"), soft_wrap=True, style="red")


def print_note(text: str) -> None:
    """Print a note that is not a result."""
    console(stderr=True).print(Text(text), soft_wrap=True)


def show_json(value: Mapping[str, Any]) -> None:
    """Print *value* as one line of JSON."""
    console().print(Text(msgspec.json.encode(value).decode()), soft_wrap=True)


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table; columns whose names start with ``#`` hold numbers."""
    made = Table(title=title, title_justify="left")
    for name in columns:
        justify = "right" if name.startswith("#") else "left"
        made.add_column(name.lstrip("#"), justify=justify)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(_format_cell(cell)) for cell in row))
    return made


def _format_cell(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


@contextmanager
def progress(wanted: bool) -> Iterator[Report | None]:
    """Show progress bars and yield their callback; None: *wanted* is False, or not a terminal."""
    stderr = console(stderr=True)
    if not wanted or not stderr.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=stderr) as bars:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:  # one bar per step, created by its first report
                tasks[step] = bars.add_task(step, total=None)
            bars.update(tasks[step], completed=done, total=total or None)

        yield report
