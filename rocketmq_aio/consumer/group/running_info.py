"""Heartbeat data and running info: what brokers and administration tools get to know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rocketmq_aio.config.consumer import LitePullConfig, PopConfig, PushConfig
from rocketmq_aio.consumer.checks.subscription_check import shared_settings
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.pull_loop.queue_state import QueueState
from rocketmq_aio.consumer.rebalance.strategies.allocation import strategy_name
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    queue_table,
)
from rocketmq_aio.protocol.subscription import Subscription

MIB: Final = 1024 * 1024


PASSIVELY: Final = "CONSUME_PASSIVELY"  # also of pop consumers: 4.9 brokers know no third type


def heartbeat_data(
    context: ConsumerContext[LitePullConfig | PushConfig | PopConfig],
    consume_type: str,
    subscriptions: Iterable[Subscription],
) -> ConsumerData:
    config = context.config
    return ConsumerData(
        group_name=context.group,
        consume_type=consume_type,
        message_model=_model(config).value,
        consume_from_where=_start(config.start_from),
        subscription_data_set=[each.to_body() for each in subscriptions],
    )


def running_info(
    context: ConsumerContext[LitePullConfig | PushConfig | PopConfig],
    subscriptions: Iterable[Subscription],
    held: Iterable[QueueState] = (),
    *,
    consume_type: str = "CONSUME_ACTIVELY",
    orderly: bool = False,
    concurrency: int = 0,  # of handlers
    is_locked: Callable[[MessageQueue], bool] = lambda queue: False,
    popped: Mapping[MessageQueue, PopProcessQueueInfo] | None = None,
) -> ConsumerRunningInfo:
    """Return the response to GET_CONSUMER_RUNNING_INFO."""
    instance, config, statistics = context.instance, context.config, context.statistics
    wanted = [each.to_body() for each in subscriptions]
    topics = dict.fromkeys([*(each.topic for each in wanted), *statistics.topics()])
    to_millis = _clock()
    return ConsumerRunningInfo(
        properties={
            **shared_settings(_model(config), orderly=orderly),
            **_shown(config),
            "PROP_CONSUME_TYPE": consume_type,
            "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
            "PROP_CLIENT_VERSION": "V5_5_0",
            "PROP_NAMESERVER_ADDR": ";".join(instance.name_servers.addresses),
            "PROP_CONSUMER_START_TIMESTAMP": str(instance.started_ms),
        },
        subscription_set=wanted,
        mq_table=queue_table({q.queue: _info(q, is_locked(q.queue), to_millis) for q in held}),
        mq_pop_table=queue_table(popped or {}),
        status_table={topic: statistics.snapshot(topic).to_body() for topic in topics},
    )


def _model(config: object) -> MessageModel:
    return getattr(config, "message_model", MessageModel.CLUSTERING)  # pop consumers have no other


def _info(
    assigned: QueueState, locked: bool, to_millis: Callable[[float], int]
) -> ProcessQueueInfo:
    held = assigned.process_queue
    first = held.first_offset or 0
    return ProcessQueueInfo(
        commit_offset=max(0, assigned.committable),
        cached_msg_min_offset=first,
        cached_msg_max_offset=first + held.span,
        cached_msg_count=held.count,
        cached_msg_size_in_mib=held.size_bytes // MIB,
        locked=locked,
        droped=assigned.dropped,
        last_pull_timestamp=to_millis(assigned.last_pull),
        last_consume_timestamp=to_millis(assigned.last_consume),
    )


def _clock() -> Callable[[float], int]:
    """Return a function from monotonic seconds to ms since 1970; 0 (never) stays 0."""
    monotonic, wall = time.monotonic(), time.time()
    return lambda seconds: int((wall - monotonic + seconds) * 1000) if seconds else 0


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _millis(seconds: float) -> str:
    return str(int(seconds * 1000))


def _count(value: int | None) -> str:
    return "-1" if value is None else str(value)


def _mib(size_bytes: int | None) -> str:
    return "-1" if size_bytes is None else str(size_bytes // MIB)


def _start(start: str | datetime) -> str:
    kind = {"latest": "LAST_OFFSET", "earliest": "FIRST_OFFSET"}.get(str(start), "TIMESTAMP")
    return f"CONSUME_FROM_{kind}"


def _instant(start: str | datetime) -> str:
    return f"{start.astimezone(UTC):%Y%m%d%H%M%S}" if isinstance(start, datetime) else ""


def _strategies(allocate: Any) -> str:  # noqa: ANN401 - as the setting takes it
    if isinstance(allocate, Mapping):
        return ";".join(f"{topic}={strategy_name(each)}" for topic, each in allocate.items())
    return "AVG" if allocate is None else strategy_name(allocate)


JAVA_NAMES: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("start_from", "consumeFromWhere", _start),
    ("start_from", "consumeTimestamp", _instant),
    ("allocate", "allocateMessageQueueStrategy", _strategies),
    ("pull_batch_size", "pullBatchSize", str),
    ("pull_interval_seconds", "pullInterval", _millis),
    ("pull_threshold_per_queue", "pullThresholdForQueue", str),
    ("pull_threshold_bytes_per_queue", "pullThresholdSizeForQueue", _mib),
    ("pull_threshold_per_topic", "pullThresholdForTopic", _count),
    ("pull_threshold_bytes_per_topic", "pullThresholdSizeForTopic", _mib),
    ("pull_threshold_total", "pullThresholdForAll", str),
    ("max_span", "consumeConcurrentlyMaxSpan", str),
    ("long_poll_seconds", "brokerSuspendMaxTimeMillis", _millis),
    ("auto_commit", "autoCommit", _flag),
    ("commit_interval_seconds", "persistConsumerOffsetInterval", _millis),
    ("concurrency", "consumeThreadMin", str),
    ("concurrency", "consumeThreadMax", str),
    ("consume_batch_size", "consumeMessageBatchMaxSize", str),
    ("max_reconsume_times", "maxReconsumeTimes", _count),
    ("consume_timeout_seconds", "consumeTimeout", lambda seconds: f"{seconds / 60:g}"),
    ("suspend_seconds", "suspendCurrentQueueTimeMillis", _millis),
    ("close_timeout_seconds", "awaitTerminationMillisWhenShutdown", _millis),
    ("client_rebalance", "clientRebalance", _flag),
    ("pop_invisible_seconds", "popInvisibleTime", _millis),
    ("invisible_seconds", "popInvisibleTime", _millis),
    ("pop_batch_size", "popBatchNums", str),
    ("batch_size", "popBatchNums", str),
    ("pop_threshold_per_queue", "popThresholdForQueue", str),
)


def _shown(config: object) -> dict[str, str]:
    shown = {
        java: text(getattr(config, name))
        for name, java, text in JAVA_NAMES
        if hasattr(config, name)
    }
    return {name: value for name, value in shown.items() if value}
