"""Output of pipeline summaries, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from rocketmq_aio.cli.output import format_table, print_error, print_line, print_note, show_json

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSummary
    from rocketmq_aio.spark.pipelines.summary import QueueCount, Summary

QUEUES: Final = "topic broker queue from to offsets rows gaps".split()
NO_LETTERS: Final = "group {!r} has no topic for dead letters: it never had any, or check GROUP"
GAPS_SHOWN: Final = 3  # per queue; JSON has all of them


def show_summary(summary: Summary, *, as_json: bool) -> None:
    """Print *summary* on standard output, and its problems on standard error."""
    if as_json:
        show_json(summary.to_dict())
    else:
        _show_tables(summary)
    for problem in summary.problems:
        print_error(problem)
    unread = summary.queues or summary.problems or summary.interrupted
    if summary.pipeline == "dlq" and not unread:
        print_note(NO_LETTERS.format(cast("DeadLetterSummary", summary).group))


def _show_tables(summary: Summary) -> None:
    title = f"{summary.pipeline}{' (dry run: nothing was changed)' if summary.dry_run else ''}"
    if summary.queues:
        print_line(f"{title}\n{format_table(QUEUES, map(_queue_row, summary.queues))}\n")
    facts: Any = summary  # some kinds of summary have tags
    if tags := getattr(facts, "tags", ()):
        rows = ((each.topic, each.tag, each.letters) for each in tags)
        print_line(f"{format_table(('origin', 'tag', 'letters'), rows)}\n")
    print_line(_format_sentence(summary))


def _queue_row(each: QueueCount) -> Sequence[object]:
    shown = [f"{gap.start}-{gap.end - 1}: {gap.reason or 'MISSING'}" for gap in each.gaps]
    more = len(shown) - GAPS_SHOWN
    gaps = "; ".join([*shown[:GAPS_SHOWN], *([f"and {more} more"] if more > 0 else [])])
    place = (each.topic, each.broker, each.queue_id)
    return (*place, each.start, each.end, each.offsets, each.rows, gaps)


def _format_sentence(summary: Summary) -> str:
    facts = _FACTS[summary.pipeline](summary)
    state = "complete" if summary.complete else "NOT COMPLETE"
    if summary.dry_run:
        state = "nothing was changed"
    return f"{facts}; {summary.seconds:.1f} s; {state}"


def _of_export(summary: Any) -> str:  # noqa: ANN401 - one kind of summary
    filtered = ", filtered" if summary.filtered else ""
    return f"{summary.rows} of {summary.offsets} offsets are in {summary.target}{filtered}"


def _of_ingest(summary: Any) -> str:  # noqa: ANN401
    bad = f", {summary.bad} bad" if summary.bad else ""
    return f"{summary.rows} messages of {summary.offsets} offsets to {summary.target}{bad}"


def _of_replay(summary: Any) -> str:  # noqa: ANN401
    where = summary.to or "the original topics"
    stopped = ", interrupted" if summary.interrupted else ""
    return f"{summary.sent} copies of {summary.offsets} offsets sent to {where}{stopped}"


def _of_load(summary: Any) -> str:  # noqa: ANN401
    return f"{summary.sent} of {summary.rows} rows sent to {summary.topic}"


def _of_dlq(summary: Any) -> str:  # noqa: ANN401
    found = sum(each.letters for each in summary.tags)
    would = "to be " if summary.dry_run else ""
    before = f", {summary.resent_before} resent before" if summary.resent_before else ""
    return f"{found} dead letters of {summary.group}, {would}resent {summary.resent}{before}"


_FACTS: Final[dict[str, Callable[[Any], str]]] = {
    "export": _of_export,
    "ingest": _of_ingest,
    "replay": _of_replay,
    "load": _of_load,
    "dlq": _of_dlq,
}
