"""Heartbeat data and running info of a pop consumer."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.consumer.pop.engine import PopEngine
from rocketmq_aio.model.values import MessageModel
from rocketmq_aio.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    queue_table,
)

# As in the Java client: brokers before 5.0 know no third type.
PASSIVELY: Final = "CONSUME_PASSIVELY"
FROM: Final = {"earliest": "CONSUME_FROM_FIRST_OFFSET", "latest": "CONSUME_FROM_LAST_OFFSET"}


def heartbeat_data(engine: PopEngine) -> ConsumerData:
    """Return the heartbeat entry of the consumer."""
    return ConsumerData(
        group_name=engine.group,
        consume_type=PASSIVELY,
        message_model=MessageModel.CLUSTERING.value,
        consume_from_where=FROM[engine.config.start_from],
        subscription_data_set=[each.to_body() for each in engine.subscriptions.values()],
    )


def running_info(engine: PopEngine) -> ConsumerRunningInfo:
    """Return the answer to GET_CONSUMER_RUNNING_INFO."""
    config, instance = engine.config, engine.instance
    properties = {
        "PROP_CONSUME_TYPE": PASSIVELY,
        "PROP_CONSUMEORDERLY": "true" if config.orderly else "false",
        "PROP_THREADPOOL_CORE_SIZE": "0",
        "PROP_CLIENT_VERSION": "V5_5_0",
        "PROP_NAMESERVER_ADDR": ";".join(instance.name_servers.addresses),
        "PROP_CONSUMER_START_TIMESTAMP": str(instance.started_ms),
        "messageModel": MessageModel.CLUSTERING.value,
        "popInvisibleTime": str(int(config.invisible_seconds * 1000)),
    }
    waiting = {
        source: PopProcessQueueInfo(droped=loop.stopped) for source, loop in engine.loops.items()
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=[each.to_body() for each in engine.subscriptions.values()],
        mq_table=queue_table({}),
        mq_pop_table=queue_table(waiting),
    )
