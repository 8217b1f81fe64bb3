"""``rmq consume``: prints messages."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final

from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.completion import complete_groups, complete_topics
from rocketmq_aio.cli.connection import READER_GROUP, ReadArguments
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.names import topics_checked
from rocketmq_aio.cli.reading import check_complete, listed_queues, parse_start, printer, read_topic
from rocketmq_aio.cli.running import run_async
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.errors import CommitError, ConfigError, RouteNotFoundError, SubscriptionError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.codes import ResponseCode

app = Group("consume")
IDLE_SECONDS: Final = 1.0
UNASSIGNED_POLLS: Final = 25  # the group may have more members than queues
EXAMPLES: Final = """
rmq consume orders
rmq consume orders --from beginning --exit-at-end --filter 'new || paid' -o json
rmq consume orders --from 2026-03-01T00:00:00Z --sql 'price > 10' --count 5
rmq consume orders --group billing
"""


@options
class ConsumeArguments(ReadArguments):
    topic: str = argument("Topic to read.", "TOPIC", complete=complete_topics)
    start: str = option(
        "beginning, end, or a time with zone; with --group, where a new group begins.",
        "--from",
        default="end",
    )
    filter: str | None = option("Tags, such as 'new || paid'; default: all.", "--filter", "-f")
    sql: str | None = option("SQL92 condition on properties, instead of --filter.")
    count: int | None = option("Messages to print at most.", "--count", "-c", min=1)
    exit_at_end: bool = option("End when everything stored before is printed.", default=False)
    bodies: bool = option("Print the bodies only.", default=False)
    queue: int | None = option("Queue id to read, of each broker; not with --group.", min=0)
    group: str | None = option(
        "Join this group: its members share the messages, and offsets are committed.",
        *("--group", "-g"),
        complete=complete_groups,
    )

    def selector(self) -> str | MessageSelector:
        """Return the filter."""
        if self.sql is None:
            return "*" if self.filter is None else MessageSelector.by_tag(self.filter)
        if self.filter is not None:
            raise ConfigError("sql", self.sql, "give either it or --filter")
        return MessageSelector.by_sql(self.sql)


@command(app, "consume", ConsumeArguments, EXAMPLES)
def _consume(arguments: ConsumeArguments) -> int:
    """Print the messages of a topic, and follow it until a signal.

    Without --group no group is joined and nothing is committed: running consumers notice nothing.
    """
    start = parse_start(arguments.start)
    arguments.selector()
    if arguments.group is not None and arguments.queue is not None:
        raise ConfigError("--queue", arguments.queue, "the queues of a member are assigned")
    is_endless = arguments.count is None and not arguments.exit_at_end
    work = _read(arguments, start) if arguments.group is None else _join(arguments, start)
    return run_async(_named(arguments, work), on_signal=ExitCode.DONE if is_endless else None)


async def _named(arguments: ConsumeArguments, work: Coroutine[Any, Any, int]) -> int:
    async with topics_checked(arguments):
        try:
            return await work
        except SubscriptionError as error:
            if error.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED or arguments.sql is None:
                raise
            raise ConfigError("sql", arguments.sql, str(error.remark)) from error


async def _read(arguments: ConsumeArguments, start: str | datetime) -> int:
    show, left = printer(arguments.output, bodies=arguments.bodies), arguments.count
    async with PullConsumer(READER_GROUP, client=arguments.config()) as reader:
        queues = await reader.message_queues(arguments.topic)
        ids = {each.queue_id for each in queues}
        if ids and arguments.queue not in {None, *ids}:
            reason = f"the queues of topic {arguments.topic} are 0 to {max(ids)}"
            raise ConfigError("queue", arguments.queue, reason)
        messages = read_topic(
            reader,
            arguments.topic,
            queues,
            start=start,
            selector=arguments.selector(),
            exit_at_end=arguments.exit_at_end,
            queue_id=arguments.queue,
        )
        async with aclosing(messages):
            async for message in messages:
                show(message)
                if left is not None and (left := left - 1) == 0:
                    break
    return ExitCode.DONE


async def _join(arguments: ConsumeArguments, start: str | datetime) -> int:
    assert arguments.group is not None
    show, left = printer(arguments.output, bodies=arguments.bodies), arguments.count
    config: LitePullConfig = LitePullConfig(
        auto_commit=False,
        start_from={"beginning": "earliest", "end": "latest"}.get(str(start), start),  # type: ignore[arg-type]
    )
    async with LitePullConsumer(
        arguments.group, client=arguments.config(), config=config
    ) as consumer:
        listed: dict[MessageQueue, str] = {}
        if arguments.exit_at_end:
            with suppress(RouteNotFoundError):  # `subscribe` waits for the topic
                listed = await listed_queues(consumer.client, arguments.topic)
        await consumer.subscribe(arguments.topic, arguments.selector())
        idle = 0
        while True:
            messages = await consumer.poll(IDLE_SECONDS)
            for message in messages[:left]:
                show(message)
                await _commit(consumer, message)
            if left is not None and (left := left - len(messages)) <= 0:
                return ExitCode.DONE
            if not messages and arguments.exit_at_end:
                lags = await consumer.lag()
                idle += 1
                if (lags or idle >= UNASSIGNED_POLLS) and not sum(lags.values()):
                    await _check_assignable(consumer, arguments.topic, listed)
                    return ExitCode.DONE


async def _commit(consumer: LitePullConsumer, message: MessageExt) -> None:
    try:
        await consumer.commit({message.queue: message.queue_offset + 1})
    except CommitError:
        if message.queue in consumer.assignment():
            raise
        # Another member has the queue now, and prints the message again.


async def _check_assignable(
    consumer: LitePullConsumer, topic: str, listed: dict[MessageQueue, str]
) -> None:
    """Raise an error if members get no queues of a broker that name servers *listed* or list."""
    assignable: dict[MessageQueue, str] = {}
    with suppress(RouteNotFoundError):
        listed = listed | await listed_queues(consumer.client, topic)
        route = await consumer.client.routes.fetch(topic)
        assignable = {queue: route.broker_of(queue) for queue in route.subscribe_queues}
    check_complete(topic, listed, assignable)
