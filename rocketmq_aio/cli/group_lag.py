"""``rmq lag``: the lag of groups."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from rocketmq_aio.admin.servers import asking_once
from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.completion import complete_groups, complete_topics
from rocketmq_aio.cli.connection import ReadArguments
from rocketmq_aio.cli.failures import ExitCode, format_error
from rocketmq_aio.cli.names import check_known, topics_checked
from rocketmq_aio.cli.output import print_error, print_line, show_result
from rocketmq_aio.cli.results import is_empty
from rocketmq_aio.cli.running import run_async
from rocketmq_aio.errors import AdminError, RocketMQError
from rocketmq_aio.remoting.gather import gather_limited

if TYPE_CHECKING:
    from rocketmq_aio.admin.client import AdminClient
    from rocketmq_aio.admin.results import GroupProgress

app = Group("lag")
AT_ONCE: Final = 16
T = TypeVar("T")
EXAMPLES: Final = """
rmq lag
rmq lag billing --queues
rmq lag billing shipping --watch 5
rmq lag --match 'shop-*' --above 1000 -o json
"""


@options
class LagArguments(ReadArguments):
    groups: list[str] | None = argument(
        "Groups; default: all.", "GROUPS", None, complete=complete_groups
    )
    topic: str | None = option("Only this topic.", complete=complete_topics)
    match: str | None = option("Only groups whose names match, such as 'shop-*'.")
    above: int | None = option("Only rows with a larger lag.")
    queues: bool = option("A row for each queue.", default=False)
    watch: float | None = option("Interval in seconds to show the lag again.", min=0.1)


@command(app, "lag", LagArguments, EXAMPLES)
def _lag(arguments: LagArguments) -> int:
    """Show how many messages groups have not consumed yet, by topic or by queue.

    The exit code is 1 if some groups or brokers could not be read; the others are shown.
    """
    return run_async(_show(arguments), on_signal=ExitCode.DONE if arguments.watch else None)


async def _show(arguments: LagArguments) -> int:
    is_shown = False
    async with arguments.admin() as admin:
        while True:
            try:
                with asking_once():
                    code = await _show_once(admin, arguments)
            except RocketMQError as error:
                if not is_shown:
                    raise
                print_error(format_error(error))  # it is watched because servers may fail
            else:
                if arguments.watch is None:
                    return code
                is_shown = True
            assert arguments.watch is not None
            await asyncio.sleep(arguments.watch)
            print_line("")


async def _show_once(admin: AdminClient, arguments: LagArguments) -> ExitCode:
    place = ("broker", "queue") if arguments.queues else ("queues",)
    columns = ("group", "topic", *place, "committed", "end", "lag", "last_time")
    known = GroupNames(arguments.groups) if arguments.groups else await list_groups(admin)
    names = [n for n in known.names if arguments.match is None or fnmatchcase(n, arguments.match)]

    async def read(group: str, brokers: list[str] | None) -> GroupProgress:
        progress = await admin.groups.progress(group, arguments.topic, brokers=brokers)
        if arguments.groups and is_empty(progress):
            await check_known(admin, "group", "GROUPS", group)
        return progress

    async with topics_checked(arguments):
        # Some of the brokers may not have the topic.
        brokers = known.brokers if arguments.topic is None else None
        found, failed = await read_all(read, names, brokers)
        if failed and not found:
            raise next(iter(failed.values()))
    if known.failure is not None:
        print_error(format_error(known.failure))
    for group, error in failed.items():
        print_error(f"{group}: {format_error(error)}")
    make = _queue_rows if arguments.queues else topic_rows
    rows = [row for each in found.values() for row in make(each)]
    if arguments.above is not None:  # else negative ones, too: of topics created again
        rows = [row for row in rows if row["lag"] > arguments.above]
    show_result(rows, arguments.output, columns)
    return ExitCode.INCOMPLETE if failed or known.failure else ExitCode.DONE


class GroupNames(NamedTuple):
    """Names of groups.

    :ivar brokers: those that answered, if some did not
    :ivar failure: of the others
    """

    names: list[str]
    brokers: list[str] | None = None
    failure: AdminError | None = None


async def list_groups(admin: AdminClient) -> GroupNames:
    """Return the names of all groups, or of those on the brokers that answer.

    :raises RocketMQError: no broker answered
    """
    names, failure = await _from_answering(admin.groups.list)
    return GroupNames(names, None if failure is None else list(failure.done), failure)


async def read_all(
    read: Callable[..., Awaitable[T]], names: list[str], brokers: list[str] | None = None
) -> tuple[Mapping[str, T], Mapping[str, RocketMQError]]:
    """Return what *read* returns for each of *names*, and the errors of those that it cannot read.

    A name that some brokers do not return has an error, and a result of the others.

    :param brokers: what *read* gets as ``brokers``, unless some of them do not answer
    """
    incomplete: dict[str, RocketMQError] = {}

    async def read_one(name: str) -> T:
        found, error = await _from_answering(partial(read, name), brokers)
        if error is not None:
            incomplete[name] = error
        return found

    found, failed = await gather_limited(read_one, names, AT_ONCE)
    return found, {**incomplete, **failed}


async def _from_answering(
    read: Callable[..., Awaitable[T]], brokers: list[str] | None = None
) -> tuple[T, AdminError | None]:
    """Return what *read* returns; if some brokers do not answer, that of the others, and the error.

    :raises RocketMQError: no broker answered
    """
    try:
        return await read(brokers=brokers), None
    except AdminError as error:
        if not (others := list(error.done)):
            raise
        return await read(brokers=others), error


def _queue_rows(progress: GroupProgress) -> list[dict[str, Any]]:
    return [
        {
            "group": progress.group,
            "topic": each.queue.topic,
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "committed": each.consumer_offset,
            "end": each.broker_offset,
            "lag": each.lag,
            "last_time": _iso(each.last_time),
        }
        for each in progress.queues
    ]


def topic_rows(progress: GroupProgress) -> list[dict[str, Any]]:
    """Return a row for each topic of a group."""
    by_topic = defaultdict(list)
    for each in progress.queues:
        by_topic[each.queue.topic].append(each)
    return [
        {
            "group": progress.group,
            "topic": topic,
            "queues": len(queues),
            "committed": sum(each.consumer_offset for each in queues),
            "end": sum(each.broker_offset for each in queues),
            "lag": sum(each.lag for each in queues),
            "last_time": _iso(max((q.last_time for q in queues if q.last_time), default=None)),
        }
        for topic, queues in sorted(by_topic.items())
    ]


def _iso(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat(timespec="milliseconds")
