"""Delayed messages: choice of a broker that supports delivery times."""

from __future__ import annotations

import asyncio
from time import monotonic

from rocketmq_aio.errors import NotConnectedError, NotSupportedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.producer.retry import never_sent
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode


async def delayed_target(
    instance: MQClientInstance,
    publish: TopicPublishInfo,
    target: SendTarget,
    fixed: bool,
    deadline: float,
) -> tuple[SendTarget, bool]:
    """Return a target whose broker supports delivery times, and whether retries must keep it.

    Brokers before 5.0 deliver such a message at once.

    :raises NotSupportedError: no broker of the topic supports them
    """
    versions = instance.heartbeats.broker_versions
    unsupported: frozenset[str] = frozenset()
    while True:
        seconds = deadline - monotonic()
        # A broker that hangs leaves time for another one.
        is_last = fixed or publish.brokers <= unsupported | {target.broker_name}
        if await _is_supported(instance, target, seconds if is_last else seconds / 2):
            break
        if is_last:
            if versions.get(target.master) is None:
                reason = "it does not say whether it keeps delivery times"
                raise never_sent(publish.topic, NotConnectedError(target.address, reason))
            remark = (
                "delay_seconds and deliver_at need a broker from 5.0: this one delivers at once"
            )
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise NotSupportedError(code, remark, target.address)
        unsupported |= {target.broker_name}
        target = publish.next_target_avoiding(unsupported)
    masters = publish.masters().values()
    return target, fixed or any(versions.get(each, 0) < V5_0_0 for each in masters)


async def _is_supported(instance: MQClientInstance, target: SendTarget, seconds: float) -> bool:
    version = instance.heartbeats.broker_versions.get(target.master)
    if version is None:
        try:
            async with asyncio.timeout(seconds):
                version = await instance.heartbeats.version_of(target.master)
        except TimeoutError:
            return False
    return version is not None and version >= V5_0_0
