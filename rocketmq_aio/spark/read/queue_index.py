"""Index of queues: waits until brokers have indexed the messages that they store.

A broker writes messages to its log first and indexes them by queue later; the end of a queue is the
end of its index.  After a large write that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

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


class _Log(NamedTuple):
    """The end of a broker's log and the number of bytes at its end that are not indexed."""

    end: int
    behind: int


async def wait_indexed(instance: MQClientInstance, queues: Iterable[Queue]) -> None:
    """Wait until the brokers of *queues* have indexed all messages that they store now.

    It ends after `WAIT_SECONDS` with the warning ``index_behind``.  A broker that does not report
    its index, such as one that denies the account access, is not waited for.
    """
    brokers = sorted({instance.routes.broker_of(MessageQueue(*each)) for each in queues})
    await gather_limited(partial(_wait, instance), brokers)


async def _wait(instance: MQClientInstance, broker: str) -> None:
    address = instance.routes.master(broker)
    log = await _log(instance, broker, address) if address is not None else None
    if address is None or log is None or log.behind <= 0:
        return
    wanted, pause = log.end, FIRST_PAUSE
    warn("waiting_for_index", broker=broker, behind_bytes=log.behind)
    deadline = anyio.current_time() + WAIT_SECONDS
    while log.behind > 0 and log.end - log.behind < wanted:
        if anyio.current_time() >= deadline:
            warn("index_behind", broker=broker, behind_bytes=log.behind, seconds=WAIT_SECONDS)
            return
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        if (found := await _log(instance, broker, address)) is None:
            return
        log = found


async def _log(instance: MQClientInstance, broker: str, address: str) -> _Log | None:
    try:
        table = (await instance.broker.read(address, GetBrokerRuntime(), KVTable)).table
        return _Log(int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"]))
    except (RocketMQError, KeyError, ValueError) as error:
        logger.info("index_unknown", broker=broker, reason=str(error))
        return None
