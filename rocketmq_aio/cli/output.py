"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO
from unicodedata import east_asian_width

import msgspec

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.cli.streams import drop_output, write_error
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from rocketmq_aio.spark.pipelines.summary import Report

WIDTH_OF_PIPES: Final = 160  # so that tables in files are not wrapped
PLAIN_YAML: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*")
YAML_WORDS: Final = frozenset("null true false yes no on off y n".split())  # of YAML 1.1
GAP: Final = "  "
PROGRESS_SECONDS: Final = 0.1  # between two updates of a bar
NESTED_WIDTH: Final = 100  # of nested values in tables


class Format(StrEnum):
    """Formats of results."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@options
class ProgressArguments:
    """Option of commands with progress bars."""

    quiet: bool = option("No progress bars.", "--quiet", "-q", default=False)


@options
class OutputArguments(ProgressArguments):
    """Options of the output of pipelines."""

    json: bool = option("Results as one line of JSON.", default=False)


@options
class FormatArguments:
    """Option of the format of results."""

    output: Format = option("Format of the result.", "--output", "-o", default=Format.TABLE)


def console(*, stderr: bool = False) -> Console:
    """Return the console of results, or on *stderr* that of errors, notes and progress."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = WIDTH_OF_PIPES
    return made


def print_error(text: str) -> None:
    """Print an error on one line."""
    if not sys.stderr.isatty():  # rich takes a while to import
        print_note(f"rmq: {text}")
        return
    from rich.text import Text

    console(stderr=True).print(Text(f"rmq: {text}"), soft_wrap=True, style="red")


def print_note(text: str) -> None:
    """Print a note that is not a result."""
    write_error(text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 message", "2 messages"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_line(text: str) -> None:
    """Print a line of a result at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def result_file(file: Path | None) -> Iterator[TextIO]:
    """Yield *file*, which is created, or standard output.

    :raises ConfigError: it cannot be created
    """
    if file is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        created = file.open("x", encoding="utf-8")
    except OSError as error:
        raise ConfigError("--file", str(file), str(error.strerror)) from None
    with created:
        yield created


class Output:
    """Lines of results of a command that goes on when nobody reads them any more."""

    def __init__(self) -> None:
        self._is_read = True

    def line(self, text: str) -> None:
        """Print *text*."""
        if self._is_read:
            try:
                print_line(text)
            except BrokenPipeError:
                drop_output()
                self._is_read = False


def show_json(value: Mapping[str, Any]) -> None:
    """Print *value* as one line of JSON."""
    print_line(json_line(value))


def json_line(value: object) -> str:
    """Return JSON without line breaks."""
    return msgspec.json.encode(value).decode()


# --- results in every format ----------------------------------------------------------------------


def show_result(value: object, kind: Format, columns: Sequence[str] = ()) -> None:
    """Print JSON values: a list as rows, a mapping as names and values.

    :param columns: names of the columns of tables and CSV, ``a.b`` is field ``b`` of ``a``;
        default: all simple fields
    """
    if text := RENDERERS[kind](value, columns):  # an empty list may have no columns
        print_line(text)


def _render_csv(value: object, columns: Sequence[str]) -> str:
    names, rows = as_rows(value, columns)
    return csv_lines([names, *rows])


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Return *rows* as lines of CSV, without the end of the last one; None is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(["" if cell is None else _text(cell) for cell in row] for row in rows)
    return out.getvalue().removesuffix("\n")


RENDERERS: Final[dict[Format, Callable[[object, Sequence[str]], str]]] = {
    Format.JSON: lambda value, _: json_line(value),
    Format.YAML: lambda value, _: "\n".join(_yaml_lines(value)),
    Format.CSV: _render_csv,
    Format.TABLE: lambda value, columns: format_table(*as_rows(value, columns)),
}


def as_rows(value: object, columns: Sequence[str]) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """Return the names of the columns and the rows of *value*."""
    if isinstance(value, Mapping):
        if columns:
            return columns, [[_pick(value, name) for name in columns]]
        return ("name", "value"), [*value.items()]
    rows: Any = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(row, Mapping) for row in rows):
        return columns or ("name",), [[row] for row in rows]
    names = columns or list(dict.fromkeys(name for row in rows for name in _flat_names(row)))
    return names, [[_pick(row, name) for name in names] for row in rows]


def _flat_names(row: Mapping[str, Any]) -> Iterator[str]:
    for name, each in row.items():
        if isinstance(each, Mapping) and name == "queue":
            yield from (f"{name}.{inner}" for inner in each)
        else:
            yield name


def _pick(row: Mapping[str, Any], name: str) -> object:
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def format_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned columns, numbers to the right; cells are printable."""
    head = [name.rpartition(".")[2].upper() for name in columns]
    kept = [list(row) for row in rows]
    right = [
        any(_is_number(row[i]) for row in kept)
        and all(row[i] is None or _is_number(row[i]) for row in kept)
        for i in range(len(head))
    ]
    cells = [head, *([format_cell(cell) for cell in row] for row in kept)]
    widths = [max(_width(row[i]) for row in cells) for i in range(len(head))]
    if widths and not right[-1]:
        widths[-1] = 0  # nothing is behind it
    lines = (GAP.join(map(_pad, row, widths, right)).rstrip() for row in cells)
    return "\n".join(lines)


def _pad(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_right else text + space


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(1 + (east_asian_width(c) in "WF") for c in text)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def format_cell(cell: object) -> str:
    """Return a cell of a table: one line, without control characters."""
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    text = printable(_text(cell))
    is_cut = not isinstance(cell, str) and len(text) > NESTED_WIDTH
    return f"{text[:NESTED_WIDTH]}..." if is_cut else text


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, list | tuple) and all(isinstance(each, str) for each in cell):
        return ",".join(cell)
    return json_line(cell) if isinstance(cell, list | tuple | Mapping) else str(cell)


def printable(text: str) -> str:
    """Return *text* with escapes for what a terminal would obey."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def _yaml_lines(value: object) -> Iterator[str]:
    """Yield *value* in blocks of YAML 1.2."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            key, (first, *others) = f"{_yaml_scalar(str(name))}:", _yaml_lines(each)
            if isinstance(each, Mapping | list | tuple) and each:
                yield key
                yield from (f"  {line}" for line in (first, *others))
            else:
                yield f"{key} {first}"
    elif isinstance(value, list | tuple) and value:
        for each in value:
            first, *others = _yaml_lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
    else:
        yield _yaml_scalar(value)


def _yaml_scalar(value: object) -> str:
    if not isinstance(value, str):
        return json_line(value)
    if PLAIN_YAML.fullmatch(value) and value.lower() not in YAML_WORDS:
        return value
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(quoted)}"'


# --- progress bars --------------------------------------------------------------------------------


@contextmanager
def progress(*, wanted: bool) -> Iterator[Report]:
    """Show progress bars on standard error and yield their callback.

    It takes a step, what is done of it, and all of it, 0 if unknown.  It does nothing in calls that
    follow fast, if *wanted* is False, and if standard error is no terminal.
    """
    if not wanted or not (sys.stderr.isatty() or "FORCE_COLOR" in os.environ):
        yield lambda *_: None
        return
    from rich import progress as rich

    columns = (rich.SpinnerColumn(), rich.TextColumn("{task.description}"), rich.BarColumn())
    shown = (*columns, rich.MofNCompleteColumn(), rich.TimeElapsedColumn())
    with rich.Progress(*shown, console=console(stderr=True), redirect_stdout=False) as bars:
        tasks: dict[str, TaskID] = {}
        due: dict[str, float] = {}

        def report(step: str, done: int, total: int) -> None:
            now = time.monotonic()
            if now < due.get(step, 0.0) and done != total:
                return
            due[step] = now + PROGRESS_SECONDS
            if step not in tasks:  # one bar per step, created by its first report
                tasks[step] = bars.add_task(step, total=None)
            bars.update(tasks[step], completed=done, total=total or None)

        yield report
