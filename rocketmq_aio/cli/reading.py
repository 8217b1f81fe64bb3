"""Reading topics without joining a group, and the output of messages."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final

from rocketmq_aio.admin.results import describe_message
from rocketmq_aio.cli.output import (
    Format,
    as_rows,
    csv_lines,
    format_cell,
    print_line,
    printable,
    show_json,
    show_result,
)
from rocketmq_aio.cli.parameters import parse_time
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.errors import (
    AdminError,
    ConfigError,
    NotConnectedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.routes import read_route
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue, MessageSelector

POLL_SECONDS: Final = 5.0
MAX_WAITING: Final = 64  # messages that are read but not printed
QUEUES_AT_ONCE: Final = 64  # of those that end
LAGGING_SECONDS: Final = 0.2  # before another pull of a queue that a replica has not copied yet
DROPPED: Final = "name servers dropped it, or listed it too late: its messages are missing here"
COLUMNS: Final = (
    "store_time topic queue.broker_name queue.queue_id queue_offset message_id tags keys body"
).split()


def parse_start(text: str) -> str | datetime:
    """Return "beginning", "end" or a time; raise `ConfigError` for others."""
    if text in ("beginning", "end"):
        return text
    try:
        when = parse_time(text)
    except ConfigError as error:
        reason = f"expected beginning, end, {error.reason.removeprefix('expected ')}"
        raise ConfigError("--from", text, reason) from None
    assert when is not None
    return when


async def read_topic(
    reader: PullConsumer,
    topic: str,
    queues: Iterable[MessageQueue],
    *,
    start: str | datetime,
    selector: str | MessageSelector = "*",
    exit_at_end: bool = False,
    queue_id: int | None = None,
) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of *topic*, each queue in order; endless, or up to the present end.

    :param queues: its readable queues
    :raises RouteNotFoundError: it cannot be read
    :raises AdminError: at the end: queues of a broker that some name server lists were not read
    """
    queues = [each for each in queues if queue_id in (None, each.queue_id)]
    if not queues:
        raise RouteNotFoundError(topic, "it has no readable queue: check its permission")
    brokers = {each: reader.client.routes.broker_of(each) for each in queues}
    found: asyncio.Queue[MessageExt | None] = asyncio.Queue(MAX_WAITING)
    free = asyncio.Semaphore(QUEUES_AT_ONCE if exit_at_end else len(queues))

    async def read(queue: MessageQueue) -> None:
        async with free:
            messages = _stored(reader, queue, start, selector, exit_at_end=exit_at_end)
            async with aclosing(messages):
                async for message in messages:
                    await found.put(message)

    async def read_all() -> None:
        async with asyncio.TaskGroup() as tasks:
            for queue in queues:
                tasks.create_task(read(queue))
        await found.put(None)

    reading = asyncio.ensure_future(read_all())
    reading.add_done_callback(lambda each: _wake(found, each))
    try:
        while (message := await found.get()) is not None:
            yield message
        reading.result()
        with suppress(RouteNotFoundError):  # dropped after all of it was read
            listed = await listed_queues(reader.client, topic)
            chosen = {q: name for q, name in listed.items() if queue_id in (None, q.queue_id)}
            check_complete(topic, chosen, brokers)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        reading.cancel()
        await asyncio.wait([reading])


async def listed_queues(client: MQClientInstance, topic: str) -> dict[MessageQueue, str]:
    """Return the readable queues of *topic* that any name server lists, and their brokers.

    A name server that has just started may lack some of the brokers.

    :raises RouteNotFoundError: there is no such topic
    """
    routes = [read_route(topic, each) for each in await client.name_servers.routes(topic)]
    return {queue: each.broker_of(queue) for each in routes for queue in each.subscribe_queues}


def check_complete(
    topic: str, listed: Mapping[MessageQueue, str], read: Mapping[MessageQueue, str]
) -> None:
    """Raise `AdminError` if there are brokers with *listed* queues, but none with *read* ones."""
    unread = {name for queue, name in listed.items() if queue not in read}
    check_brokers(f"reading topic {topic}", unread - set(read.values()), read.values())


def check_brokers(action: str, missing: Iterable[str], others: Iterable[str]) -> None:
    """Raise `AdminError` if the result of *action* lacks the messages of the *missing* brokers."""
    failed: dict[str, RocketMQError] = {
        name: NotConnectedError(name, DROPPED) for name in sorted(missing)
    }
    if failed:
        raise AdminError(action, dict.fromkeys(sorted({*others})), failed, of="brokers")


async def _stored(
    reader: PullConsumer,
    queue: MessageQueue,
    start: str | datetime,
    selector: str | MessageSelector,
    *,
    exit_at_end: bool,
) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of *queue* from *start* on.

    :raises NotConnectedError: name servers do not list the topic any more
    """
    wait = 0.0 if exit_at_end else POLL_SECONDS
    try:
        offset = await _first(reader, queue, start)
        end = await reader.max_offset(queue) if exit_at_end else None
        while end is None or offset < end:
            result = await reader.pull(queue, offset, 32, selector, wait_seconds=wait)
            for message in result.messages:
                if end is None or message.queue_offset < end:
                    yield message
            offset = result.next_offset
            if end is not None and offset < end and result.status is PullStatus.NO_NEW:
                # A replica that lags behind, or a new master that lacks the end.
                if (now := await reader.max_offset(queue)) < end:
                    lost = f"{queue} ends at {now} now, and ended at {end}: the messages are gone"
                    raise RocketMQError(lost)
                await asyncio.sleep(LAGGING_SECONDS)
    except RouteNotFoundError as error:  # not "there is no such topic": it was listed before
        reason = f"no name server lists {queue.topic} now"
        raise NotConnectedError(queue.broker_name, reason) from error


def _wake(found: asyncio.Queue[MessageExt | None], reading: asyncio.Future[None]) -> None:
    """Wake the reader of *found* after a failure; a message that was read may be dropped."""
    if reading.cancelled() or reading.exception() is not None:
        if found.full():
            found.get_nowait()
        found.put_nowait(None)


async def _first(reader: PullConsumer, queue: MessageQueue, start: str | datetime) -> int:
    if isinstance(start, datetime):
        return await reader.offset_for_time(queue, start)
    return await (reader.min_offset if start == "beginning" else reader.max_offset)(queue)


def describe(message: MessageExt) -> dict[str, Any]:
    """Return a message as JSON values; a body that is not UTF-8 is in ``body_base64``."""
    described = describe_message(message)
    if described["body"] is None:
        described["body_base64"] = base64.b64encode(message.body).decode()
    return described


def printer(kind: Format, *, bodies: bool) -> Callable[[MessageExt], None]:
    """Return what prints a message in a format; *bodies*: nothing but the bodies."""
    if bodies:
        return _print_body
    if kind is Format.CSV:
        print_line(csv_lines([COLUMNS]))
    return PRINTERS[kind]


def _print_body(message: MessageExt) -> None:
    sys.stdout.buffer.write(message.body + b"\n")
    sys.stdout.buffer.flush()


def _print_text(message: MessageExt) -> None:
    body = message.body.decode(errors="backslashreplace")
    place = f"{message.queue}@{message.queue_offset}"
    labels = f"tag={format_cell(message.tags)} keys={format_cell(list(message.keys))}"
    print_line(f"{message.store_time:%H:%M:%S.%f} {printable(place)} {labels}  {printable(body)}")


def _print_csv(message: MessageExt) -> None:
    _, rows = as_rows([describe(message)], COLUMNS)
    print_line(csv_lines(rows))


def _print_yaml(message: MessageExt) -> None:
    print_line("---")
    show_result(describe(message), Format.YAML)


PRINTERS: Final[dict[Format, Callable[[MessageExt], None]]] = {
    Format.TABLE: _print_text,
    Format.JSON: lambda message: show_json(describe(message)),
    Format.CSV: _print_csv,
    Format.YAML: _print_yaml,
}
