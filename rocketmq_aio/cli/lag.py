"""``rmq pipeline lag``: lag of a group, once or at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rocketmq_aio.cli.arguments import argument, option, options
from rocketmq_aio.cli.connection import ConnectionArguments
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.output import (
    OutputArguments,
    console,
    format_table,
    print_line,
    print_note,
    show_json,
)
from rocketmq_aio.cli.stop_flag import stop_flag

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines.group_lag import LagSettings, LagSummary

COLUMNS: Final = "topic broker queue min committed max lag behind deleted".split()
UNUSED: Final = "group {!r} has no offsets in these topics and no members: check --group"
POLL_SECONDS: Final = 0.1  # interval of checks for signals


@options
class LagArguments(OutputArguments, ConnectionArguments):
    topics: list[str] = argument("Names of topics.", "TOPICS")
    watch: float | None = option("Interval in seconds to show the lag again.", min=0.1)
    dry_run: bool = option("Accepted for scripts; lag changes nothing.", default=False)


def show_lag(arguments: LagArguments) -> int:
    """Show the lag of a group (--group) in its topics; needs no Spark."""
    from rocketmq_aio.spark.pipelines import LagSettings, lag

    settings = LagSettings(connection=arguments.connection(), topics=tuple(arguments.topics))
    if arguments.watch is None:
        print_lag(lag(settings), as_json=arguments.json)
        return ExitCode.DONE
    with stop_flag() as stop:
        summaries = _summaries(settings, arguments.watch, stop)
        if arguments.json or not console().is_terminal:
            for summary in summaries:
                print_lag(summary, as_json=arguments.json)
            return ExitCode.DONE
        from rich.live import Live
        from rich.text import Text

        with Live(console=console(), auto_refresh=False) as live:
            for summary in summaries:
                live.update(Text(lag_table(summary), no_wrap=True), refresh=True)
    return ExitCode.DONE


def _summaries(
    settings: LagSettings, seconds: float, stop: Callable[[], bool]
) -> Iterator[LagSummary]:
    from rocketmq_aio.spark.pipelines import lag

    while not stop():
        due = time.monotonic() + seconds
        yield lag(settings)
        while not stop() and time.monotonic() < due:
            time.sleep(min(seconds, POLL_SECONDS))


def print_lag(summary: LagSummary, *, as_json: bool) -> None:
    if as_json:
        show_json(summary.to_dict())
    else:
        print_line(lag_table(summary))
    if summary.unused:
        print_note(UNUSED.format(summary.group))


def lag_table(summary: LagSummary) -> str:
    """Return a table with one row per queue, under a line with the sum."""
    rows = [
        (
            *(each.topic, each.broker, each.queue_id, each.minimum, each.committed, each.maximum),
            *(each.lag, format_seconds(each.behind(summary.at)), each.deleted or None),
        )
        for each in summary.lags
    ]
    at = f"{summary.at:%Y-%m-%d %H:%M:%S} UTC"
    title = f"{summary.group}: {summary.lag:,} messages behind at {at}"
    return f"{title}\n{format_table(COLUMNS, rows)}"


def format_seconds(seconds: float) -> str | None:
    """Return a duration in hours, minutes or seconds; None for 0."""
    if seconds <= 0:
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"
