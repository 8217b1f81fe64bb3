"""Sender: runs one send through its order, in-flight limit, route and attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from time import monotonic, time_ns
from typing import Any, Final, TypeAlias, TypeVar

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import NotSupportedError, RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.name_servers import AT_BROKERS
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.delayed import delayed_target
from rocketmq_aio.producer.fault_strategy import BrokerFault, FaultStrategy
from rocketmq_aio.producer.in_flight import InFlightLimiter
from rocketmq_aio.producer.queue_selection import OrderKey, QueueSelection, Routing
from rocketmq_aio.producer.retry import never_sent
from rocketmq_aio.producer.send_attempts import SendAttempts, StoredCall
from rocketmq_aio.producer.send_request import SendRequest, check_sizes, make_request
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo, TopicPublishTable
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.header import queue_fields
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from rocketmq_aio.remoting.keyed_lock import KeyedLock

T = TypeVar("T")
SelectTarget: TypeAlias = Callable[[TopicPublishInfo], SendTarget]

NO_REPLIES: Final = f"a proxy does not forward replies: {AT_BROKERS}"


class Sender:
    """The parts that all sends of a producer share.

    :param stored: called for each send that was stored
    :param check_running: raises the error of a producer that does not run
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        config: ProducerConfig,
        stored: Sequence[StoredCall],
        check_running: Callable[[], None],
    ) -> None:
        self.instance = instance
        self.config = config
        self.ids = MessageIdGenerator(ip_address(instance.address).packed, 0, 0)  # see `renew`
        self.in_flight = InFlightLimiter(config.max_in_flight, config.max_in_flight_bytes)
        self.order = KeyedLock[OrderKey]()
        self.selection = QueueSelection()
        self.table = TopicPublishTable(instance, group, config)
        self.faults = FaultStrategy(
            self.table.exclude, self._probe, self._start_probing, enabled=config.fault_isolation
        )
        self.attempts = SendAttempts(instance, config, self.table.renewed, self.faults, stored)
        self.registration = BrokerRegistration(instance)
        self.delayed_target = partial(delayed_target, instance, self.table.renewed)
        self.check_running = check_running

    def send(
        self, message: Message, routing: Routing, deadline: float
    ) -> Coroutine[Any, Any, SendResult]:
        """Send *message* by itself; `Producer.send` does the same in fewer calls."""

        async def send(publish: TopicPublishInfo, target: SendTarget) -> SendResult:
            if routing.is_request or routing.is_reply:
                self._check_replies_work()
            if message.timed or routing.is_request:
                request = await self._prepare(message, routing, publish, target, deadline)
            else:
                request = self.request_to(target, message, routing)
            return await self.attempts.run(request, publish, deadline)

        select = routing.select_target
        return self.with_target(message.topic, message, select, deadline, send, key=routing.key)

    async def send_oneway(self, message: Message, routing: Routing, deadline: float) -> None:
        topic = message.topic
        if topic not in self.table.infos:  # before it is in flight: `close` does not wait for this
            check_sizes(message, self.config)
            await self.table.find(topic, deadline)

        async def send(publish: TopicPublishInfo, target: SendTarget) -> None:
            publish.used_at = monotonic()
            request = await self._prepare(message, routing, publish, target, deadline)
            if request.compression is not None:
                await self.attempts.compress(request, deadline)
            header, started = request.header(publish), monotonic()
            try:
                await self.instance.remoting.oneway(
                    request.target.address, header, request.body, timeout=deadline - started
                )
            except RocketMQError as error:
                self.faults.on_failure(request.target, error, started, monotonic())
                raise

        await self.with_target(topic, message, routing.select_target, deadline, send)

    async def with_target(
        self,
        topic: str,
        size_of: Message | int,
        select: SelectTarget,
        deadline: float,
        send: Callable[[TopicPublishInfo, SendTarget], Awaitable[T]],
        *,
        key: str | None = None,
    ) -> T:
        """Take a place in flight, find the queues of *topic*, and await *send* with one of them.

        :param size_of: the message, or the bytes of a body that was checked
        :param key: sends of the topic with the same key run one after another
        """
        size = size_of if isinstance(size_of, int) else len(size_of.body)
        order_key = topic, key
        if key is not None and not self.order.try_acquire(order_key):
            await self.wait_for_order(order_key, deadline)
        try:
            if not self.in_flight.try_acquire(size):
                await self.wait_for_room(size, deadline, topic)
            try:
                message = size_of if isinstance(size_of, Message) else None
                return await send(*await self.find_target(topic, select, deadline, message))
            finally:
                self.in_flight.release(size)
        finally:
            if key is not None:
                self.order.release(order_key)

    async def find_target(
        self, topic: str, select: SelectTarget, deadline: float, message: Message | None = None
    ) -> tuple[TopicPublishInfo, SendTarget]:
        """Return the queues of *topic*, and the one that *select* chooses.

        If the route lacks the broker of that queue, it is requested once more.

        :param message: its sizes are checked before a route is requested
        """
        publish = self.table.infos.get(topic)
        if publish is None:
            if message is not None:
                check_sizes(message, self.config)
            publish = await self.table.find(topic, deadline)
        try:
            return publish, select(publish)
        except RouteNotFoundError:
            publish = await self.table.refreshed(publish, deadline)
            return publish, select(publish)

    async def wait_for_room(self, size: int, deadline: float, topic: str) -> None:
        """Take a place in flight when there is one.

        :raises SendError: there was none before *deadline*
        """
        reason = "no room among the unanswered sends (max_in_flight, max_in_flight_bytes)"
        await _within(deadline, self.in_flight.wait_and_acquire(size), topic, reason)

    async def wait_for_order(self, key: OrderKey, deadline: float) -> None:
        """Acquire *key* when all sends before have ended.

        :raises SendError: they had not before *deadline*
        """
        reason = "a send before it with the same sharding key, or queue choice, has not ended"
        await _within(deadline, self.order.wait_and_acquire(key), key[0], reason)
        try:
            self.check_running()
        except RocketMQError:
            self.order.release(key)
            raise

    def request_to(self, target: SendTarget, message: Message, routing: Routing) -> SendRequest:
        now_ms = time_ns() // 1_000_000
        message_id = self.ids.next_id(now_ms)
        request = make_request(message, target, message_id, now_ms, self.config, routing.extra)
        request.fixed = routing.fixed
        request.is_reply = routing.is_reply
        return request

    async def _prepare(
        self,
        message: Message,
        routing: Routing,
        publish: TopicPublishInfo,
        target: SendTarget,
        deadline: float,
    ) -> SendRequest:
        fixed = routing.fixed
        if message.timed:
            target, fixed = await self.delayed_target(publish, target, fixed, deadline)
        if routing.is_request and not self.registration.is_registered(target.master):
            await self.registration.register(target.master, deadline)
        request = self.request_to(target, message, routing)
        request.fixed = fixed
        return request

    def _check_replies_work(self) -> None:
        name_servers = self.instance.name_servers
        if name_servers.are_proxies:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise NotSupportedError(code, NO_REPLIES, name_servers.addresses[0])

    def _start_probing(self) -> None:
        self.instance.tasks.spawn(self.faults.probe_while_excluded, name="probes")

    async def _probe(self, fault: BrokerFault) -> None:
        header = GetMaxOffset(**queue_fields(fault.queue))
        await self.instance.remoting.request(fault.address, header)


async def _within(deadline: float, waiting: Awaitable[None], topic: str, reason: str) -> None:
    try:
        async with asyncio.timeout(deadline - monotonic()):
            await waiting
    except TimeoutError:
        raise never_sent(topic, reason) from None


class BrokerRegistration:
    def __init__(self, instance: MQClientInstance) -> None:
        self._instance = instance
        self._registered: dict[str, int] = {}  # number of the connection, by address

    def is_registered(self, address: str) -> bool:
        """Whether the broker at *address* got a heartbeat over the current connection."""
        number = self._instance.connection_number(address)
        registered = self._registered.get(address) == number
        return registered and self._instance.remoting.is_connected(address)

    async def register(self, address: str, deadline: float) -> None:
        """Send a heartbeat to the broker at *address*; takes half of the time.

        A broker that cannot be reached raises nothing: the send may find another one.
        """
        number_of = self._instance.connection_number
        with suppress(TimeoutError):
            async with asyncio.timeout((deadline - monotonic()) / 2):
                if await self._instance.heartbeats.start(address) is None:
                    current = {at: n for at, n in self._registered.items() if number_of(at) == n}
                    self._registered = {**current, address: number_of(address)}
