"""``rmq top``: rates of topics and lag of groups, again and again."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from rocketmq_aio.admin.servers import asking_once
from rocketmq_aio.cli.arguments import Group, command, option, options
from rocketmq_aio.cli.connection import ClientArguments
from rocketmq_aio.cli.failures import ExitCode, format_error
from rocketmq_aio.cli.group_lag import list_groups, read_all, topic_rows
from rocketmq_aio.cli.output import as_rows, console, format_table, print_line
from rocketmq_aio.cli.running import run_async
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.values import MessageQueue

if TYPE_CHECKING:
    from rocketmq_aio.admin.client import AdminClient

app = Group("top")
Offsets = dict[MessageQueue, int]
TOPICS: Final = ("topic", "messages", "in_per_second")
GROUPS: Final = ("group", "topic", "lag", "out_per_second")
EXAMPLES: Final = """
rmq top
rmq top --match 'shop-*' --interval 5 --limit 10
"""


@options
class TopArguments(ClientArguments):
    match: str | None = option("Only topics and groups whose names match, such as 'shop-*'.")
    interval: float = option("Seconds between two screens.", default=2.0, min=0.1)
    limit: int = option("Rows of topics, and of groups.", default=15, min=1)
    most: int = option("Topics, and groups, that are read for a screen.", default=500, min=1)
    count: int | None = option("Screens to show.", min=1)


@command(app, "top", TopArguments, EXAMPLES)
def _top(arguments: TopArguments) -> int:
    """Show the busiest topics and the groups with the largest lag until a signal.

    Rates are the growth of offsets between two screens. Without a terminal each screen is
    printed below the last one.
    """
    on_signal = ExitCode.DONE if arguments.count is None else None
    return run_async(_show(arguments), on_signal=on_signal)


async def _show(arguments: TopArguments) -> int:
    from rich.live import Live
    from rich.text import Text

    stdout = console()
    live = Live(console=stdout, auto_refresh=False, screen=True) if stdout.is_terminal else None
    before: dict[Any, tuple[float, Offsets]] = {}
    shown = 0
    async with arguments.admin() as admin:
        with live or nullcontext():
            while True:
                try:
                    with asking_once():
                        text, before, is_whole = await _screen(admin, arguments, before)
                except RocketMQError as error:
                    if not shown:
                        raise
                    text, is_whole = f"{time.strftime('%H:%M:%S')}  {format_error(error)}", False
                if live is None:
                    print_line(text)
                else:
                    live.update(Text(text, no_wrap=True), refresh=True)
                shown += 1
                if shown == arguments.count:
                    return ExitCode.DONE if is_whole else ExitCode.INCOMPLETE
                await asyncio.sleep(arguments.interval)


async def _screen(
    admin: AdminClient, arguments: TopArguments, before: dict[Any, tuple[float, Offsets]]
) -> tuple[str, dict[Any, tuple[float, Offsets]], bool]:
    """Return the text, the time and the offsets by topic and by group, and if it is whole.

    Topics and groups that cannot be read, because a broker does not respond, are counted.
    """
    topics, of_topics = _chosen(await admin.topics.list(), arguments.match, arguments.most)
    known = await list_groups(admin)
    groups, of_groups = _chosen(known.names, arguments.match, arguments.most)
    found, failed = await read_all(admin.topics.stats, topics)
    lags, unread = await read_all(admin.groups.progress, groups, known.brokers)
    now, after = time.monotonic(), {}

    def rate(key: object, offsets: Offsets) -> float | None:
        """Return the growth of the queues that both screens have: brokers come and go."""
        after[key] = now, offsets
        then, old = before.get(key, (now, offsets))
        grown = sum(offset - old[queue] for queue, offset in offsets.items() if queue in old)
        return grown / (now - then) if now > then else None

    busy: list[dict[str, Any]] = [
        {
            "topic": topic,
            "messages": each.count,
            "in_per_second": rate(topic, {q.queue: q.max_offset for q in each.queues}),
        }
        for topic, each in found.items()
    ]
    late = []
    for progress in lags.values():
        committed: defaultdict[str, Offsets] = defaultdict(dict)
        for each in progress.queues:
            committed[each.queue.topic][each.queue] = each.consumer_offset
        for row in topic_rows(progress):
            key, topic = (row["group"], row["topic"]), row["topic"]
            late.append({**row, "out_per_second": rate(key, committed[topic])})
    busy.sort(key=lambda row: (-(row["in_per_second"] or 0), -row["messages"], row["topic"]))
    late.sort(key=lambda row: (-row["lag"], row["group"], row["topic"]))
    head = f"{of_topics} topics, {of_groups} groups"
    if failed or unread:
        head += f"; not wholly readable: {len(failed)} topics, {len(unread)} groups"
    if known.failure is not None:
        head += f"; {format_error(known.failure)}"
    tables = [
        format_table(*as_rows(rows[: arguments.limit], columns))
        for rows, columns in ((busy, TOPICS), (late, GROUPS))
    ]
    text = "\n\n".join([f"{time.strftime('%H:%M:%S')}  {head}", *tables])
    return text, after, not (failed or unread or known.failure)


def _chosen(names: list[str], match: str | None, most: int) -> tuple[list[str], str]:
    """Return the names to read, and their number, also of those that are left out."""
    found = [name for name in names if match is None or fnmatchcase(name, match)]
    chosen = found[:most]
    more = "" if len(chosen) == len(found) else f" of {len(found)} (--most, --match)"
    return chosen, f"{len(chosen)}{more}"
