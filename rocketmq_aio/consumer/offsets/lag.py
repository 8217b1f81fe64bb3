"""Lag: how many messages a consumer is behind the ends of its queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio

from rocketmq_aio.consumer.pulling.queue_state import QueueState
from rocketmq_aio.errors import RequestTimeoutError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.remoting.gather import gather_limited

QUERIES_AT_ONCE: Final = 16


async def fetch_lag(
    instance: MQClientInstance, queues: Iterable[QueueState]
) -> dict[MessageQueue, int]:
    """Return the distance from the position to the end of each of *queues*.

    :raises RocketMQError: a broker did not respond, or the start of a queue is unknown
    """
    lag: dict[MessageQueue, int] = {}

    async def fetch(assigned: QueueState) -> None:
        await wait_until_started(instance, assigned)
        end = await instance.broker.max_offset(assigned.queue)
        if not assigned.dropped:
            lag[assigned.queue] = max(0, end - assigned.position)

    for error in (await gather_limited(fetch, queues, QUERIES_AT_ONCE)).failures.values():
        raise error
    return dict(sorted(lag.items()))


async def wait_until_started(instance: MQClientInstance, assigned: QueueState) -> None:
    """Return when the queue is started or dropped.

    :raises RocketMQError: its start offset cannot be determined now
    """
    seconds = instance.config.request_timeout_seconds
    with anyio.move_on_after(seconds):
        await assigned.started.wait()
    if not assigned.started.is_set():
        code, broker = RequestCode.QUERY_CONSUMER_OFFSET, assigned.queue.broker_name
        raise assigned.start_error or RequestTimeoutError(broker, code, seconds)
