"""Event streams: delivery, bounds, end."""

from __future__ import annotations

import asyncio
import gc

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import (
    MAX_UNREAD,
    CommitFailed,
    ConsumerEvent,
    EventStream,
    EventStreams,
)


def event(number: int) -> CommitFailed:
    return CommitFailed(queues=(), reason=str(number))


@pytest.fixture
def streams() -> EventStreams:
    return EventStreams()


async def rest_of(stream: EventStream) -> list[ConsumerEvent]:
    return [each async for each in stream]


async def test_event_before_the_first_read_is_kept(streams: EventStreams) -> None:
    stream = streams.open()
    streams.publish(event(1))

    assert await anext(stream) == event(1)


async def test_a_reader_that_waits_is_woken(streams: EventStreams) -> None:
    stream = streams.open()
    reading = asyncio.create_task(stream.__anext__())
    await wait_all_tasks_blocked()
    streams.publish(event(1))

    assert await asyncio.wait_for(reading, 15) == event(1)


async def test_every_stream_gets_all_events_since_its_start(streams: EventStreams) -> None:
    first = streams.open()
    streams.publish(event(1))
    second = streams.open()
    streams.publish(event(2))
    streams.close()

    assert await rest_of(first) == [event(1), event(2)]
    assert await rest_of(second) == [event(2)]


async def test_stream_ends_after_its_unread_events(streams: EventStreams) -> None:
    stream = streams.open()
    streams.publish(event(1))
    streams.close()

    assert await rest_of(stream) == [event(1)]
    assert await rest_of(stream) == []


async def test_end_wakes_all_readers_of_a_stream(streams: EventStreams) -> None:
    stream = streams.open()
    readers = [asyncio.create_task(rest_of(stream)) for _ in range(2)]
    await wait_all_tasks_blocked()
    streams.publish(event(1))
    streams.close()

    events = await asyncio.wait_for(asyncio.gather(*readers), 15)
    assert sorted(map(len, events)) == [0, 1]


async def test_a_stream_that_is_opened_after_the_end_is_empty(streams: EventStreams) -> None:
    streams.close()

    assert await rest_of(streams.open()) == []


async def test_a_cancelled_reader_loses_nothing(streams: EventStreams) -> None:
    stream = streams.open()
    reading = asyncio.create_task(stream.__anext__())
    await wait_all_tasks_blocked()
    streams.publish(event(1))
    reading.cancel()
    await asyncio.wait([reading])

    assert await anext(stream) == event(1)


async def test_unread_stream_keeps_the_newest_events(streams: EventStreams) -> None:
    stream = streams.open()
    for number in range(MAX_UNREAD + 3):
        streams.publish(event(number))
    streams.close()

    events = await rest_of(stream)
    assert len(events) == MAX_UNREAD
    assert events[0] == event(3)


async def test_unreferenced_stream_is_removed(streams: EventStreams) -> None:
    streams.open()
    gc.collect()

    assert len(streams._streams) == 0


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, GeneratorExit])
def test_publish_ignores_exceptions_of_the_listener(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def listener(_: ConsumerEvent) -> None:
        raise kind

    EventStreams(listener).publish(event(1))

    assert "event_listener_failed" in caplog.text
