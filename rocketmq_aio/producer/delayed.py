"""Delayed messages: choice of a broker that supports delivery times."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from rocketmq_aio.errors import NotSupportedError, RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.producer.retry import never_sent
from rocketmq_aio.producer.send_attempts import Renew
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.remoting.backoff import Backoff


async def delayed_target(
    instance: MQClientInstance,
    renew: Renew,
    publish: TopicPublishInfo,
    target: SendTarget,
    fixed: bool,
    deadline: float,
) -> tuple[SendTarget, bool]:
    """Return a target whose broker supports delivery times, and whether retries must keep it.

    Brokers before 5.0 deliver such a message at once.  While the version of a broker is not known,
    it is requested again until *deadline*: the broker may be restarting.

    :param renew: as for `SendAttempts`
    :raises NotSupportedError: no broker of the topic supports them
    :raises SendError: a version was not known before *deadline*
    :raises ClosedError: the client was closed
    """
    versions, backoff = instance.heartbeats.broker_versions, Backoff()
    unsupported: frozenset[str] = frozenset()
    while True:
        seconds = deadline - monotonic()
        # A broker that hangs leaves time for another one.
        is_last = fixed or publish.brokers <= unsupported | {target.broker_name}
        if await _is_supported(instance, target, seconds if is_last else seconds / 2):
            break
        instance.check_running()  # a closed client never gets the version
        unsupported |= {target.broker_name}
        if is_last:
            asked = (target.master,) if fixed else publish.masters().values()
            if all(versions.get(each, V5_0_0) < V5_0_0 for each in asked):
                remark = (  # for Spark's deliverTimestamp, too
                    "a delivery time needs a broker from 5.0, this one would deliver at once; "
                    "delay levels work on all brokers"
                )
                code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                raise NotSupportedError(code, remark, target.address)
            pause = backoff.next_pause()
            if monotonic() + pause >= deadline:
                reason = "it does not say whether it keeps delivery times"
                raise never_sent(publish.topic, reason, address=target.address)
            await asyncio.sleep(pause)
            publish, unsupported = await renew(publish, deadline), frozenset()
            with suppress(RouteNotFoundError):  # its broker may have a new address
                target = publish.target(target.queue)
        if not fixed:
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
