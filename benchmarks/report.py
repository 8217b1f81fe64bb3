"""Tables of saved results, as plain text or as Markdown for docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from benchmarks.results import Results, Spread, figures, paired_ratio
from benchmarks.sample import Sample

REFERENCES: Final = {"broker": "java", "ceiling": "bare"}
Row = list[str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table; *ratio* columns compare with the reference of the same round."""

    title: str
    figure: str
    show: Callable[[float], str]
    ratio: bool = False


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _times(value: float) -> str:
    return f"{value:.2f}"


def _milliseconds(value: float) -> str:
    return f"{value / 1e3:.2f}"


def _tenths(value: float) -> str:
    return f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{value * 100:.2f}"


RATE: Final = (
    Column("messages/s", "rate", _whole),
    Column("ratio", "rate", _times, ratio=True),
    Column("CPU s per million", "client_cpu_us", _tenths),
    Column("CPU ratio", "client_cpu_us", _times, ratio=True),
    Column("broker CPU s per million", "broker_cpu_us", _tenths),
    Column("p50 ms", "p50_us", _milliseconds),
    Column("p99 ms", "p99_us", _milliseconds),
    Column("p999 ms", "p999_us", _milliseconds),
    Column("peak RSS MiB", "rss_mib", _whole),
    Column("lost", "lost", _whole),
    Column("duplicated", "duplicated", _whole),
)
LATENCY: Final = (
    Column("p50 ms", "p50_us", _milliseconds),
    Column("p50 ratio", "p50_us", _times, ratio=True),
    Column("p99 ms", "p99_us", _milliseconds),
    Column("p99 ratio", "p99_us", _times, ratio=True),
    Column("p999 ms", "p999_us", _milliseconds),
    Column("from intended start: p50 ms", "intended_p50_us", _milliseconds),
    Column("p99 ms", "intended_p99_us", _milliseconds),
    Column("CPU s per million", "client_cpu_us", _tenths),
    Column("CPU ratio", "client_cpu_us", _times, ratio=True),
    Column("messages/s", "rate", _whole),
    Column("peak RSS MiB", "rss_mib", _whole),
    Column("lost", "lost", _whole),
    Column("duplicated", "duplicated", _whole),
)
FIRST: Final = (
    Column("seconds", "first_seconds", _times),
    Column("ratio", "first_seconds", _times, ratio=True),
    Column("CPU seconds", "client_cpu_seconds", _times),
    Column("peak RSS MiB", "rss_mib", _whole),
)
IDLE: Final = (
    Column("% of a core", "client_cores", _percent),
    Column("RSS MiB", "rss_now_mib", _whole),
)


def tables(
    results: Results, titles: dict[str, str], reference: str | None = None
) -> list[tuple[str, list[Row]]]:
    """Return a title and rows, the first one the header, for every measured workload.

    Ratios are to *reference*, by default the Java client or the bare prototype.
    """
    names = dict.fromkeys(sample.workload for sample in results.samples)
    chosen = reference or REFERENCES[results.kind]
    return [(titles.get(name, name), _table(results, name, chosen)) for name in names]


def _table(results: Results, workload: str, reference: str) -> list[Row]:
    samples = [sample for sample in results.samples if sample.workload == workload]
    columns = _columns(samples)
    subjects = sorted(dict.fromkeys(sample.subject for sample in samples))
    rows = [["subject", *(column.title for column in columns), "rounds"]]
    for subject in subjects:
        cells = [_cell(results, workload, subject, column, reference) for column in columns]
        rows.append([subject, *cells, _rounds(samples, subject)])
    return _without_empty_columns(rows)


def _columns(samples: list[Sample]) -> tuple[Column, ...]:
    known = samples[0].figures
    if "first_seconds" in known:
        return FIRST
    if "intended_p50_us" in known:
        return LATENCY
    return RATE if "rate" in known else IDLE


def _cell(results: Results, workload: str, subject: str, column: Column, reference: str) -> str:
    if column.ratio:
        if subject == reference:
            return ""
        spread = paired_ratio(results.samples, workload, subject, reference, column.figure)
    else:
        spread = Spread.of(figures(results.samples, workload, subject, column.figure).values())
    return spread_text(spread, column.show)


def spread_text(spread: Spread | None, show: Callable[[float], str]) -> str:
    """Return median and range; empty without values."""
    if spread is None:
        return ""
    median, low, high = show(spread.median), show(spread.low), show(spread.high)
    return median if low == high else f"{median} ({low}-{high})"


def _rounds(samples: list[Sample], subject: str) -> str:
    mine = [sample for sample in samples if sample.subject == subject]
    clean = sum(sample.clean for sample in mine)
    return str(clean) if clean == len(mine) else f"{clean} quiet of {len(mine)}"


def _without_empty_columns(rows: list[Row]) -> list[Row]:
    kept = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    return [[row[place] for place in kept] for row in rows]


def as_text(rows: Iterable[Row]) -> str:
    held = list(rows)
    widths = [max(map(len, column)) for column in zip(*held, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in held
    )


def as_markdown(rows: Iterable[Row]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def describe(results: Results) -> str:
    """Return one line with machine, time and parameters of the run."""
    where = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    how = ", ".join(f"{name} {value}" for name, value in results.settings.items())
    return f"Taken {results.taken_at} ({how}) on {where}."
