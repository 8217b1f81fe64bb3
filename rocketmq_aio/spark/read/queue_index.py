"""Index of queues: waits until brokers have indexed the messages that they store.

A broker writes messages to its log first and indexes them by queue later; the end of a queue is the
end of its index.  After a large write that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import anyio

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.requests.admin import GetBrokerRuntime, KVTable
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.read.data_loss import warn

logger = get_logger(__name__)

WAIT_SECONDS: Final = 60.0
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


async def wait_indexed(instance: MQClientInstance, queues: Iterable[Queue]) -> None:
    """Wait until the brokers of *queues* have indexed all messages that they store now.

    It ends after `WAIT_SECONDS` with the warning ``index_behind``.  A broker that does not report
    its index, such as one that denies the account access, is not waited for.
    """
    brokers = sorted({instance.routes.broker_of(MessageQueue(*each)) for each in queues})
    await gather_limited(partial(_wait, instance), brokers)


async def _wait(instance: MQClientInstance, broker: str) -> None:
    wanted, pause, deadline = 0, FIRST_PAUSE, anyio.current_time() + WAIT_SECONDS
    while (log := await _log(instance, broker)) is not None:
        end, behind = log
        if behind <= 0 or end - behind >= wanted > 0:
            return
        if wanted == 0:
            wanted = end
            warn("waiting_for_index", broker=broker, behind_bytes=behind)
        elif anyio.current_time() >= deadline:
            warn("index_behind", broker=broker, behind_bytes=behind, seconds=WAIT_SECONDS)
            return
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _log(instance: MQClientInstance, broker: str) -> tuple[int, int] | None:
    """Return the end of the log and the number of bytes before it that are not indexed."""
    address = instance.routes.master(broker)
    if address is None:
        return None
    try:
        table = (await instance.broker.read(address, GetBrokerRuntime(), KVTable)).table
        return int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])
    except (RocketMQError, KeyError, ValueError) as error:
        logger.info("index_unknown", broker=broker, reason=str(error))
        return None
