"""What every way of sending needs: room, the queues of topics, ids, attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from time import monotonic, time_ns
from typing import Any, Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import (
    ClosedError,
    ConfigError,
    NameServerUnavailableError,
    NotConnectedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.accumulator import BatchAccumulator
from rocketmq_aio.producer.batching.pending_batch import Entry, request_of
from rocketmq_aio.producer.fault_strategy import BrokerFault, FaultStrategy
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.in_flight import InFlightLimiter
from rocketmq_aio.producer.send_attempts import Attempts
from rocketmq_aio.producer.topic_publish_info import (
    SendTarget,
    TopicPublishInfo,
    find_publish,
    why_unwritable,
)
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset

UNUSED_SECONDS: Final = 600.0  # a topic not sent to for so long is forgotten
RENEW_SECONDS: Final = 0.5  # a topic whose brokers fail is asked about no more often


class Sender(ClientBase):
    """Base of producers: bounds, the topics sent to lately, and their place in the instance."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None,
        client: MQClientInstance | ClientConfig | None,
        config: ProducerConfig | None,
        hooks: Iterable[object],
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client)
        if config is not None and not isinstance(config, ProducerConfig):
            raise ConfigError("config", config, "expected a ProducerConfig")
        self._config = config or ProducerConfig()
        self._room = InFlightLimiter(self._config.max_in_flight, self._config.max_in_flight_bytes)
        self._topics: dict[str, TopicPublishInfo] = {}
        host = ip_address(self._instance.address).packed
        self._ids = MessageIdGenerator(host, 0, 0)  # see `MessageIdGenerator.renew`
        self._faults = FaultStrategy(
            self._topics.values,
            self._ask_isolated,
            self._start_probing,
            enabled=self._config.fault_isolation,
        )
        self._hooks = SendHooks(self._bind_hooks(hooks))
        self._attempts = Attempts(
            self._instance, self._config, self._renewed, self._faults, self._hooks.stored
        )
        self._batching = self._config.auto_batch is not None
        self._hooked = bool(self._hooks)
        self._detour = self._batching or self._hooked
        self._together = BatchAccumulator(
            self._config.auto_batch or AutoBatch(linger_seconds=0),
            self._config,
            self._ids,
            self._room,
            self._transmit,
            self._spawn_batch,
        )

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Topics sent to lately, and the one that says where new ones can be created."""
        now = monotonic()
        unused = [t for t, each in self._topics.items() if now - each.used_at > UNUSED_SECONDS]
        for topic in unused:
            del self._topics[topic]
        return [self._config.template_topic, *self._topics]

    def on_route_changed(self, topic: str) -> None:
        """Take the queues anew with the next send."""
        self._topics.pop(topic, None)
        self._faults.forget(self._instance.send_addresses())

    # --- inside ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._ids.renew()
        self._instance.register_producer(self)

    async def _shut(self) -> None:
        self._room.refuse(ClosedError(f"{self!r} is closed"))
        self._together.close_all()
        try:
            # Sends that are under way end by their own deadlines.
            await self._room.wait_until_empty()
        finally:  # also when that takes longer than a close may
            self._attempts.close()
            self._faults.forget(set())
            await self._instance.unregister_producer(self)

    async def _wait_for_room(self, size: int, deadline: float, topic: str) -> None:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._room.wait_and_take(size)
        except TimeoutError:
            reason = "no room among the unanswered sends (max_in_flight, max_in_flight_bytes)"
            raise self._attempts.never_sent(topic, NotConnectedError("-", reason)) from None

    async def _publish(self, topic: str, deadline: float) -> TopicPublishInfo:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                publish = await find_publish(
                    self._instance.routes,
                    topic,
                    self._group,
                    self._config,
                    self._instance.config,
                )
        except TimeoutError:
            routes = self._instance.routes
            known = routes.known(topic) or routes.known(self._config.template_topic)
            if known is not None and not known.publish_queues:
                raise RouteNotFoundError(topic, why_unwritable(known)) from None
            silent = TimeoutError("no answer before the deadline of the send")
            addresses = self._instance.name_servers.addresses
            raise NameServerUnavailableError(dict.fromkeys(addresses, silent)) from None
        publish.leave_out(self._faults.left_out)
        return self._topics.setdefault(topic, publish)

    async def _transmit(
        self, entries: Sequence[Entry], queue: MessageQueue | None, deadline: float
    ) -> SendResult:
        topic = entries[0][1].topic
        publish = self._topics.get(topic) or await self._publish(topic, deadline)
        now_ms = time_ns() // 1_000_000
        target = publish.next_target() if queue is None else self._target_at(publish, queue)
        sent = request_of(entries, target, now_ms, self._config, fixed=queue is not None)
        return await self._attempts.run(sent, publish, deadline)

    def _target_at(self, publish: TopicPublishInfo, queue: MessageQueue) -> SendTarget:
        return publish.target(queue)

    def _spawn_batch(
        self, function: Callable[..., Coroutine[Any, Any, None]], what: object
    ) -> None:
        self._instance.check_running()  # a host that is closing would ignore it
        self._instance.host.spawn(function, what, name="batch")

    def _start_probing(self) -> None:
        self._instance.host.spawn(self._faults.probe_while_isolated, name="probes")

    async def _ask_isolated(self, held: BrokerFault) -> None:
        queue = held.queue
        header = GetMaxOffset(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        await self._instance.remoting.request(held.address, header)

    async def _renewed(self, publish: TopicPublishInfo, deadline: float) -> TopicPublishInfo:
        """Return the newest queues: brokers may have come or moved since the last refresh.

        A name server that does not answer changes nothing, and takes half of the time at most.
        """
        topic, now = publish.topic, monotonic()
        if self._topics.get(topic) is publish and now - publish.renewed_at > RENEW_SECONDS:
            publish.renewed_at = now
            with suppress(RocketMQError, TimeoutError):
                async with asyncio.timeout((deadline - now) / 2):
                    await self._instance.routes.fetch(topic)
        with suppress(RocketMQError):
            return self._topics.get(topic) or await self._publish(topic, deadline)
        return publish
