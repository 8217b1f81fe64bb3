"""The state of a consumer as administration tools ask for it, over the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rocketmq_aio.config import ConsumerConfig
from rocketmq_aio.consumer.assigned import AssignedQueue
from rocketmq_aio.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, queue_table
from rocketmq_aio.protocol.subscription import Subscription

MIB: Final = 1024 * 1024
SHOWN_SETTINGS: Final = (
    "pull_batch_size",
    "pull_threshold_per_queue",
    "max_span",
    "long_poll_seconds",
)


def running_info(
    config: ConsumerConfig,
    subscriptions: Iterable[Subscription],
    held: Iterable[AssignedQueue],
    known: Mapping[str, str],
) -> ConsumerRunningInfo:
    """Return the answer to GET_CONSUMER_RUNNING_INFO; *known* are properties of the client."""
    properties = {
        "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_THREADPOOL_CORE_SIZE": "0",
        "PROP_CLIENT_VERSION": "V5_5_0",
        "messageModel": config.message_model.value,
        **{name: str(getattr(config, name)) for name in SHOWN_SETTINGS},
        **known,
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=[each.to_body() for each in subscriptions],
        mq_table=queue_table({each.queue: _info(each) for each in held}),
    )


def _info(assigned: AssignedQueue) -> ProcessQueueInfo:
    held = assigned.process_queue
    first = held.first_offset or 0
    return ProcessQueueInfo(
        commit_offset=max(0, assigned.settled),
        cached_msg_min_offset=first,
        cached_msg_max_offset=first + held.span,
        cached_msg_count=held.count,
        cached_msg_size_in_mib=held.size_bytes // MIB,
        droped=assigned.dropped,
    )
