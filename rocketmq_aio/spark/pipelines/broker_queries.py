"""What pipelines ask brokers themselves, beside what Spark reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.errors import RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.summary import Gap, QueueCount
from rocketmq_aio.spark.read.queue_index import wait_indexed
from rocketmq_aio.spark.runtime import Runtime


def ends_of(connection: Connection, topics: Iterable[str]) -> dict[Queue, int]:
    """Return where the readable queues of *topics* end; a topic that is not there has none.

    All messages stored before the call are counted: it waits for the index of the queues.

    :raises RocketMQError: a broker cannot be asked, or refuses
    """
    runtime = Runtime.get(connection)
    return runtime.call(indexed_ends, runtime.instance, runtime.pull_consumer(), tuple(topics))


async def indexed_ends(
    instance: MQClientInstance, consumer: PullConsumer, topics: tuple[str, ...]
) -> dict[Queue, int]:
    """Do what `ends_of` says."""
    queues = [queue for topic in topics for queue in await _queues(consumer, topic)]
    places = {(queue.topic, queue.broker_name, queue.queue_id): queue for queue in queues}
    await wait_indexed(instance, places)
    return {place: await consumer.max_offset(queue) for place, queue in places.items()}


def has_route(connection: Connection, topic: str) -> bool:
    """Return whether a name server knows *topic*; it is asked once.

    :raises RocketMQError: none answers
    """
    runtime = Runtime.get(connection)
    return runtime.call(_has_route, runtime.pull_consumer(), topic)


async def _has_route(consumer: PullConsumer, topic: str) -> bool:
    try:
        await consumer.message_queues(topic)
    except RouteNotFoundError:
        return False
    return True


async def _queues(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    try:
        return await consumer.message_queues(topic)
    except RouteNotFoundError:
        return []


def grown(before: Mapping[Queue, int], after: Mapping[Queue, int]) -> int:
    """Return how many messages were stored between two answers of `ends_of`."""
    return sum(max(0, end - before.get(queue, 0)) for queue, end in after.items())


def explained(connection: Connection, counts: Iterable[QueueCount]) -> list[QueueCount]:
    """Ask brokers why there are gaps: what they do not hold any more is no loss of the pipeline.

    A broker that cannot be asked explains nothing.
    """
    runtime = Runtime.get(connection)
    return [_explained(runtime, each) if each.gaps else each for each in counts]


def _explained(runtime: Runtime, count: QueueCount) -> QueueCount:
    try:
        return runtime.call(_reasons, runtime.pull_consumer(), count)
    except RocketMQError:
        return count


async def _reasons(consumer: PullConsumer, count: QueueCount) -> QueueCount:
    queue = MessageQueue(count.topic, count.broker, count.queue_id)
    begin = await consumer.min_offset(queue)
    pieces = chain.from_iterable(cut(gap, begin) for gap in count.gaps)
    return replace(count, gaps=tuple([await _asked(consumer, queue, piece) for piece in pieces]))


def cut(gap: Gap, begin: int) -> list[Gap]:
    """Split *gap* where the queue *begins* now: what lies before was deleted."""
    reason = f"deleted by the broker: the queue begins at {begin} now"
    if gap.end <= begin:
        return [replace(gap, reason=reason)]
    if gap.start >= begin:
        return [gap]
    return [Gap(start=gap.start, end=begin, reason=reason), replace(gap, start=begin)]


async def _asked(consumer: PullConsumer, queue: MessageQueue, gap: Gap) -> Gap:
    """Look where the broker's next message is: it says so itself when it holds none in a gap."""
    if gap.reason is not None:
        return gap
    answer = await consumer.pull(queue, gap.start, 1)
    if answer.status is PullStatus.OFFSET_RESET:  # says nothing of the offset
        return gap
    found = answer.status is PullStatus.FOUND
    upto = answer.messages[0].queue_offset if found else answer.next_offset
    if upto < gap.end:
        return gap
    return replace(gap, reason=f"the broker holds no message from {gap.start} to {gap.end - 1}")
