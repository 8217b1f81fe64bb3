"""Output: results to standard output, messages and progress to standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer
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

from rocketmq_aio.spark.pipelines.summary import Report

WIDTH_OF_PIPES: Final = 160  # without a terminal tables are not folded


@dataclass(kw_only=True)
class OutputArguments:
    """Output options."""

    json: Annotated[bool, typer.Option("--json", help="Results as one line of JSON.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False


def results() -> Console:
    """Return the console for results."""
    return _console(stderr=False)


def notes() -> Console:
    """Return the console for messages."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_PIPES
    return console


def print_error(text: str) -> None:
    """Print an error on one line."""
    notes().print(Text(f"rmq: {text}"), soft_wrap=True, style="red")


def print_note(text: str) -> None:
    """Print a message that is not a result."""
    notes().print(Text(text), soft_wrap=True)


def show_json(value: Mapping[str, Any]) -> None:
    """Print *value* as one line of JSON."""
    results().print(Text(msgspec.json.encode(value).decode()), soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table; columns named with a leading ``#`` hold numbers."""
    made = Table(title=title, title_justify="left")
    for name in columns:
        justify = "right" if name.startswith("#") else "left"
        made.add_column(name.lstrip("#"), justify=justify)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(_shown(cell)) for cell in row))
    return made


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


@contextmanager
def progress(wanted: bool) -> Iterator[Report | None]:
    """Show progress bars during the block and yield their callback; None without a terminal."""
    console = notes()
    if not wanted or not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console) as bars:
        yield _Bars(bars)


class _Bars:
    """One progress bar per step, created at its first report."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=None)
        self._bars.update(self._tasks[what], completed=done, total=total or None)
