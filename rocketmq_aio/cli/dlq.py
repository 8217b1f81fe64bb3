"""``rmq dlq``: dead letters."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_aio.admin.servers import asking_once
from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.completion import complete_groups
from rocketmq_aio.cli.confirm import ChangeArguments
from rocketmq_aio.cli.connection import READER_GROUP, ClientArguments, ReadArguments, send_settings
from rocketmq_aio.cli.failures import ExitCode, format_error
from rocketmq_aio.cli.group_lag import read_all
from rocketmq_aio.cli.input import InputError
from rocketmq_aio.cli.names import check_known, check_target
from rocketmq_aio.cli.output import (
    FormatArguments,
    ProgressArguments,
    counted,
    json_line,
    print_error,
    print_note,
    progress,
    result_file,
    show_result,
)
from rocketmq_aio.cli.reading import check_brokers, describe, parse_start, printer, read_topic
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.errors import ConfigError, RouteNotFoundError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX, popped_topic_pattern
from rocketmq_aio.model.properties import LMQ_NAMES, RETRY_TOPIC
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer

if TYPE_CHECKING:
    from rocketmq_aio.admin.client import AdminClient
    from rocketmq_aio.spark.pipelines.summary import Report

app = Group("dlq", "Dead letters of groups.")
COPIED_ID: Final = "COPIED_ID"  # as in the copies of `rmq pipeline dlq`


@options
class GroupArguments(ClientArguments):
    """A group, and which of its letters."""

    group: str = argument("Consumer group.", "GROUP", complete=complete_groups)
    start: str = option("beginning, or a time with zone.", "--from", default="beginning")
    count: int | None = option("Letters at most.", "--count", "-c", min=1)
    key: str | None = option("Only letters with this key.")
    id: str | None = option("Only the letter with this message id.")

    def is_wanted(self, letter: MessageExt) -> bool:
        """Return whether the letter has the key and the id."""
        return self.key in (None, *letter.keys) and self.id in (None, letter.message_id)


@options
class ShowArguments(FormatArguments, GroupArguments):
    bodies: bool = option("Print the bodies only.", default=False)


@options
class ResendArguments(ChangeArguments, ProgressArguments, GroupArguments):
    to_topic: str | None = option("Topic to send to; default: the original one.")


@options
class ExportArguments(ProgressArguments, GroupArguments):
    file: Path | None = option("File to create; default: standard output.", "--file", "-f")


@command(app, "list", ReadArguments, "rmq dlq list")
async def _list(arguments: ReadArguments) -> int:
    """List the groups with dead letters, and how many are stored.

    The exit code is 1 if some groups or brokers could not be read; the others are shown.
    """
    async with arguments.admin() as admin:
        before = await _brokers(admin)
        names = [n for n in await admin.topics.list(internal=True) if n.startswith(DLQ_PREFIX)]
        with asking_once():
            found, failed = await read_all(admin.topics.stats, names)
        after = await _brokers(admin)
    if failed and not found:
        raise next(iter(failed.values()))
    for topic, error in failed.items():
        print_error(f"{topic.removeprefix(DLQ_PREFIX)}: {format_error(error)}")
    rows = [
        {
            "group": topic.removeprefix(DLQ_PREFIX),
            "letters": stats.count,
            "last_time": max(
                (q.last_update.isoformat() for q in stats.queues if q.last_update), default=None
            ),
        }
        for topic, stats in found.items()
    ]
    show_result(rows, arguments.output, ("group", "letters", "last_time"))
    check_brokers("counting dead letters", before ^ after, before & after)
    return ExitCode.INCOMPLETE if failed else ExitCode.DONE


async def _brokers(admin: AdminClient) -> set[str]:
    return {each.broker_name for each in (await admin.brokers.cluster()).brokers}


@command(app, "show", ShowArguments, "rmq dlq show billing\nrmq dlq show billing --key 42 -o json")
async def _show(arguments: ShowArguments) -> int:
    """Print dead letters."""
    show = printer(arguments.output, bodies=arguments.bodies)
    async with (
        PullConsumer(READER_GROUP, client=arguments.config()) as reader,
        aclosing(_letters(reader, arguments, await _queues(reader, arguments))) as letters,
    ):
        async for letter in letters:
            show(letter)
    return 0


async def _queues(reader: PullConsumer, arguments: GroupArguments) -> Sequence[MessageQueue]:
    """Return the queues with the letters of the group; without a topic for them it has none."""
    parse_start(arguments.start)  # an invalid one is an error, also without letters
    topic = DLQ_PREFIX + arguments.group
    try:
        route = await reader.client.routes.fetch(topic)
    except RouteNotFoundError:
        async with arguments.admin() as admin:
            await check_known(admin, "group", "GROUP", arguments.group)
        print_note(f"{arguments.group} has no dead letters")
        return ()
    readable = {each.broker_name for each in route.subscribe_queues}
    if not readable or {each.broker_name for each in route.ordered_queues} - readable:
        reason = f"brokers made {topic} unreadable: rmq topic update '{topic}' --perm RW"
        raise ConfigError("GROUP", arguments.group, reason)
    return route.subscribe_queues


async def _letters(
    reader: PullConsumer,
    arguments: GroupArguments,
    queues: Sequence[MessageQueue],
    report: Report | None = None,
) -> AsyncGenerator[MessageExt, None]:
    """Yield the letters that are stored now.

    :param report: is called for each letter that was read, also for those that are not wanted
    """
    if not queues:
        return
    topic, start = DLQ_PREFIX + arguments.group, parse_start(arguments.start)
    messages = read_topic(reader, topic, queues, start=start, exit_at_end=True)
    left, read, total = arguments.count, 0, 0
    if report is not None and start == "beginning":  # otherwise not all stored ones are read
        total = sum([await reader.max_offset(q) - await reader.min_offset(q) for q in queues])
    async with aclosing(messages):
        async for letter in messages:
            read += 1
            if report is not None:
                report("letters", read, total)
            if arguments.is_wanted(letter):
                yield letter
                if left is not None and (left := left - 1) == 0:
                    return


@command(
    app,
    "resend",
    ResendArguments,
    "rmq dlq resend billing --dry-run\nrmq dlq resend billing --key 42 --yes",
)
async def _resend(arguments: ResendArguments) -> int:
    """Send dead letters to their original topics; all groups that read these get them.

    The letters stay stored. A copy names its letter in the property COPIED_ID. Run
    rmq pipeline dlq --resend to skip those that were sent before.
    """
    if arguments.to_topic is not None:
        check_target("--to-topic", arguments.to_topic)
    config, sent = arguments.config(), 0
    async with PullConsumer(READER_GROUP, client=config) as reader:
        if not (queues := await _queues(reader, arguments)):
            return 0
        is_wanted = arguments.confirm(f"resend dead letters of group {arguments.group}")
        try:
            with progress(wanted=not arguments.quiet) as report:
                async with (
                    Producer("rmq-dlq", client=config, config=send_settings(config)) as producer,
                    aclosing(_letters(reader, arguments, queues, report)) as letters,
                ):
                    async for letter in letters:
                        try:
                            copy = copy_of(letter, arguments.to_topic)
                        except ConfigError as error:
                            if not sent or not is_wanted:
                                raise
                            # not "nothing was done"
                            raise InputError(format_error(error)) from error
                        if is_wanted:
                            await producer.send(copy)
                        sent += 1
        finally:
            would = "sent" if is_wanted else "would be sent"
            print_note(f"{counted(sent, 'dead letter')} of {arguments.group} {would}")
    return 0


def copy_of(letter: MessageExt, topic: str | None) -> Message:
    """Return a new message with the content of *letter*; ConfigError if its topic is unknown."""
    origin = original_topic(letter)
    properties = {**letter.user_properties, COPIED_ID: letter.message_id}
    if origin is not None and origin.startswith(LMQ_PREFIX):
        # Sent to the light queue itself, it would take the offset of another message there.
        reason = f"is needed: a topic to send messages of {origin} to"
        properties[LMQ_NAMES] = origin
        origin = None
    else:
        reason = "is needed: the letter does not name its original topic"
    target = topic or origin
    if target is None:
        raise ConfigError("--to-topic", letter.message_id, reason)
    return Message(
        target,
        letter.body,
        tags=letter.tags,
        keys=letter.keys,
        properties=properties,
        flag=letter.flag,
        sharding_key=letter.sharding_key,
        priority=letter.priority if letter.sharding_key is None else None,
    )


def original_topic(letter: MessageExt) -> str | None:
    """Return the topic of the message that became *letter*, None if its properties lack it."""
    pattern = popped_topic_pattern(letter.topic.removeprefix(DLQ_PREFIX))
    for name in filter(None, map(letter.property, (RETRY_TOPIC, "DLQ_ORIGIN_TOPIC"))):
        popped = re.match(pattern, name)
        if popped is not None or not name.startswith(RETRY_PREFIX):
            return name if popped is None else popped[1]
    return None


@command(app, "export", ExportArguments, "rmq dlq export billing --file letters.jsonl")
async def _export(arguments: ExportArguments) -> int:
    """Write dead letters as JSON lines, bodies in base64: `rmq produce --json` sends them."""
    count = 0
    is_quiet = arguments.quiet or (arguments.file is None and sys.stdout.isatty())
    with result_file(arguments.file) as file, progress(wanted=not is_quiet) as report:
        async with (
            PullConsumer(READER_GROUP, client=arguments.config()) as reader,
            aclosing(
                _letters(reader, arguments, await _queues(reader, arguments), report)
            ) as letters,
        ):
            async for letter in letters:
                body = {"body": None, "body_base64": base64.b64encode(letter.body).decode()}
                file.write(json_line(describe(letter) | body) + "\n")
                count += 1
    print_note(f"{counted(count, 'dead letter')} of {arguments.group} written")
    return 0
