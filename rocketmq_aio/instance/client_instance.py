"""MQClientInstance: connections, routes and heartbeats, shared by producers and consumers."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from time import time_ns
from typing import Final, NoReturn, Self, TypeVar

import anyio
from msgspec.structs import replace

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import ClosedError, ConfigError, NotRunningError, RocketMQError
from rocketmq_aio.instance.broker_client import BrokerClient
from rocketmq_aio.instance.heartbeats import Heartbeats
from rocketmq_aio.instance.inner_clients import InnerClient, InnerConsumer
from rocketmq_aio.instance.name_servers import NameServers
from rocketmq_aio.instance.pending_replies import PendingReplies
from rocketmq_aio.instance.requests_from_broker import BrokerRequestHandler
from rocketmq_aio.instance.routes import RouteTable
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.address import before_vip, parse_address, parse_addresses, vip_address
from rocketmq_aio.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from rocketmq_aio.protocol.requests.groups import UnregisterClient
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.fork import FORKED, copy_error, reset_after_fork
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.remoting_client import RemotingClient

logger = get_logger(__name__)

C = TypeVar("C", bound=InnerClient)

UNREGISTER_SECONDS = 3.0
LOOPBACK: Final = "127.0.0.1"
ANYWHERE: Final = ("198.51.100.1", "2001:db8::1")  # addresses for documentation: no host has them
PROBE_PORT: Final = 9
MAKE_ANOTHER = "make one per loop"
ADVERTISED = (
    "the broker advertises this address through the name server: if it cannot be reached from "
    "here (containers, tunnels), set brokerIP1 in the configuration of the broker, or "
    "address_mapper of ClientConfig"
)


class MQClientInstance:
    """Connections, routes and heartbeats under one client id.

    Each producer or consumer creates its own; to share one, start it and pass it as ``client=``::

        async with MQClientInstance(ClientConfig(namesrv="127.0.0.1:9876")) as client:
            async with Producer("orders", client=client) as producer: ...

    There is no global registry, so a process can use several clusters.
    """

    def __init__(self, config: ClientConfig) -> None:
        if not isinstance(config, ClientConfig):
            raise ConfigError("config", config, "expected a ClientConfig")
        self.config = config
        self.address = _local_address(config.namesrv)
        self._client_id: str | None = None
        self.failure: BaseException | None = None
        self.started_ms = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._forked = False
        self._producers: dict[str, InnerClient] = {}
        self._consumers: dict[str, InnerConsumer] = {}
        self._readers: list[InnerClient] = []
        # By topic: since the last refresh of routes, and those that began to use it after that.
        self._topic_consumers: dict[str, dict[InnerConsumer, None]] = {}
        self._connection_numbers: dict[str, int] = {}  # of the latest connection, by address
        self._connections_made = 0
        self.tasks = BackgroundTasks(f"rocketmq:{self.address}", on_failure=self._fail)
        self.replies = PendingReplies()
        handler = BrokerRequestHandler(self._consumers, self._producers, self.replies, config)
        self.remoting = RemotingClient(
            config,
            self.tasks,
            on_request=handler.handle,
            on_connected=self._connected,
            on_unreachable=self._unreachable,
            advice=self._advice,
        )
        self.name_servers = NameServers(config, self.remoting)
        self.routes = RouteTable(
            self.name_servers,
            topics_in_use=self._topics,
            on_changed=self._route_changed,
            received_since=self._received_since,
            on_replaced=self._replaced,
        )
        self.broker = BrokerClient(self.remoting, self.name_servers, self.routes)
        self.heartbeats = Heartbeats(
            self.remoting,
            self.tasks,
            describe=self._describe,
            addresses=self._heartbeat_addresses,
            short_form=config.heartbeat_v2,
        )

    # --- lifetime -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the background tasks; connects only to an address server, if configured.

        :raises ConfigError: no name server is configured
        :raises NotRunningError: it was started before
        :raises ClosedError: it was closed, or a start failed
        """
        if self._closed:
            raise ClosedError("the client is closed; make a new one")
        if self._loop is not None:
            raise NotRunningError("a client is started once; make a new one")
        self._loop = loop_for("the client")
        self._client_id = self._make_client_id()
        reset_after_fork(self)
        self.started_ms = time_ns() // 1_000_000
        try:
            await self.name_servers.load()
            self._check_still_open()
            await self.tasks.start()
            self._check_still_open()
        except BaseException:
            self._closed = True
            raise
        self.remoting.start()
        config, spawn = self.config, self.tasks.spawn
        # Separate tasks: a slow name server must not delay heartbeats, nor the reverse.
        spawn(self.routes.run, config.route_refresh_interval_seconds, name="routes")
        spawn(self.heartbeats.run, config.heartbeat_interval_seconds, name="heartbeats")
        spawn(self._keep_addresses, name="addresses")

    async def close(self) -> None:
        """Close all connections; may be called twice, concurrently and before `start`.

        Close the clients that share it first; the calls of others raise from then on.
        """
        self._closed = True
        if self._loop is None:
            return
        if self._loop is not asyncio.get_running_loop():
            raise other_loop_error("the client", self._loop, "close it there")
        self.remoting.close()
        closed = ClosedError("the client that it shares was closed")
        self.replies.close(closed)
        if self.failure is None:
            self._fail_consumers(closed)
        await self.tasks.close()

    def _fail_consumers(self, cause: BaseException) -> None:
        """Fail those left: they would try again without an end, and callers wait for messages."""
        consumers = list(self._consumers.values())
        self._consumers.clear()
        for consumer in consumers:
            consumer.on_failed(cause)

    def after_fork(self) -> None:
        """In a forked child: every call of this copy raises."""
        self._forked = self._closed = True
        self._loop = None
        self.remoting.after_fork()

    def _make_client_id(self) -> str:
        # Not in the constructor: processes forked after it must not share an id.
        instance_name = self.config.instance_name or f"{os.getpid()}#{secrets.token_hex(8)}"
        unit = "" if self.config.unit_name is None else f"@{self.config.unit_name}"
        return f"{self.address}@{instance_name}{unit}"

    def _check_still_open(self) -> None:
        if self._closed:
            raise ClosedError("the client was closed while it started")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The client id in heartbeats.

        :raises NotRunningError: the client was never started: `start` creates the id
        """
        if self._client_id is None:
            raise NotRunningError("a client has no id before `start()`, which creates it")
        return self._client_id

    @property
    def has_ended(self) -> bool:
        """Whether it was closed or has failed.  Thread-safe."""
        return self._closed or self.failure is not None

    def check_running(self) -> None:
        """Raise the error for a call that this instance cannot serve now."""
        if self.failure is not None:
            if self._loop is not None and self._loop.is_closed():
                raise other_loop_error("the client", self._loop, MAKE_ANOTHER) from self.failure
            raise NotRunningError(f"the client failed: {self.failure!r}") from self.failure
        if self._forked:
            raise NotRunningError(f"the client {FORKED}")
        if self._closed:
            raise ClosedError("the client is closed")
        if self._loop is None:
            raise NotRunningError("the client is not started: use `async with` or `start()`")
        if self._loop is not asyncio.get_running_loop():
            raise other_loop_error("the client", self._loop, MAKE_ANOTHER)

    # --- registration ---------------------------------------------------------------------------

    def register_producer(self, client: InnerClient) -> None:
        """Register the producer of a group.

        :raises ConfigError: the group has a producer in this instance
        """
        _register(self._producers, client)

    def register_consumer(self, client: InnerConsumer) -> None:
        """Register the consumer of a group.

        :raises ConfigError: the group has a consumer in this instance
        """
        _register(self._consumers, client)
        for topic in client.topics():
            self.use_topic(client, topic)

    def use_topic(self, client: InnerConsumer, topic: str) -> None:
        """Call `on_route_changed` of *client* also for *topic*, which it has begun to use.

        That ends after *topic* has left its `topics`.
        """
        self._topic_consumers.setdefault(topic, {})[client] = None

    async def unregister_producer(self, client: InnerClient) -> None:
        """Unregister from all brokers; bounded in time, failures are logged."""
        if self._producers.get(client.group) is client:
            del self._producers[client.group]
            header = UnregisterClient(client_id=self.client_id, producer_group=client.group)
            await self._unregister(header)

    async def unregister_consumer(self, client: InnerConsumer) -> None:
        """Unregister from all brokers, so that other members take over at once."""
        if self._consumers.get(client.group) is client:
            del self._consumers[client.group]
            header = UnregisterClient(client_id=self.client_id, consumer_group=client.group)
            await self._unregister(header)

    def drop_consumer(self, client: InnerClient) -> None:
        """Unregister a failed consumer in the background, so that other members take over."""
        consumer = self._consumers.get(client.group)
        if consumer is client and not self.tasks.is_ending:
            self.tasks.spawn(self.unregister_consumer, consumer, name=f"leave-{client.group}")

    def register_reader(self, client: InnerClient) -> None:
        """Refresh the routes of *client*; it is not in heartbeats, and groups may repeat."""
        self._readers.append(client)

    def unregister_reader(self, client: InnerClient) -> None:
        """Unregister a reader; may be called twice."""
        self._readers = [each for each in self._readers if each is not client]

    async def _unregister(self, header: UnregisterClient) -> None:
        async def leave(address: str) -> None:
            async with self.heartbeats.lock(address):  # else one in flight could win
                try:
                    await self.remoting.request_checked(address, header)
                except RocketMQError as error:
                    logger.info("unregister_failed", address=address, reason=str(error))

        # Only connected ones: a broker forgets a client when its connection is lost.
        connected = set(filter(self.remoting.is_connected, self.routes.addresses()))
        connected |= self.heartbeats.registered()
        with anyio.move_on_after(UNREGISTER_SECONDS, shield=True):  # also when a close is late
            await gather_limited(leave, connected)

    def connection_number(self, address: str) -> int:
        """Return the number of the latest connection to *address*; 0: there was none."""
        return self._connection_numbers.get(address, 0)

    def current_connection(self, address: str | None) -> int:
        """Return the number of the connection to *address*; 0: there is none now."""
        if address is None or not self.remoting.is_connected(address):
            return 0
        return self.connection_number(address)

    def send_address(self, master: str) -> str:
        """Return the address to send messages to for the broker at *master*."""
        return vip_address(master) if self.config.vip_channel else master

    def send_addresses(self) -> set[str]:
        """Return the addresses to send messages to for all brokers."""
        return {self.send_address(each) for each in self.routes.addresses(masters_only=True)}

    def _topics(self) -> Iterable[str]:
        self._topic_consumers = {}
        for consumer in self._consumers.values():
            for topic in consumer.topics():
                self.use_topic(consumer, topic)
        others = (*self._producers.values(), *self._readers)
        return {*self._topic_consumers, *(topic for each in others for topic in each.topics())}

    def _route_changed(self, topic: str) -> None:
        # An instance may have a thousand consumers, each with a retry topic of its own.
        consumers = [
            each
            for each in self._topic_consumers.get(topic, ())
            if self._consumers.get(each.group) is each
        ]
        for client in (*self._producers.values(), *consumers, *self._readers):
            client.on_route_changed(topic)

    def _connected(self, address: str) -> None:
        self._connections_made += 1  # over all addresses: numbers are unique
        self._connection_numbers[address] = self._connections_made
        # The broker dropped the registration with the old connection: send a heartbeat at once.
        self.heartbeats.forget(address)
        if address in self._heartbeat_addresses():
            self.heartbeats.start(address)

    def _unreachable(self, address: str) -> None:
        for named in self._named(address):
            self.routes.suspect(named)
        is_lost = not self.remoting.is_connected(address) and not self.remoting.backoff_left(
            address
        )
        if len(self.replies) and is_lost and address in self._heartbeat_addresses():
            # At once: the broker drops replies to a client that it does not know.
            self.heartbeats.start(address)

    def _received_since(self, address: str, since: float) -> bool:
        return any(self.remoting.received_since(each, since) for each in self._both(address))

    def _replaced(self, address: str) -> None:
        for each in self._both(address):
            self.remoting.drop(each, "it does not respond, and another broker has replaced it")

    def _both(self, address: str) -> tuple[str, str]:
        """Return the addresses at which the broker at *address* gets requests and sends."""
        return address, self.send_address(address)

    def _named(self, address: str) -> list[str]:
        """Return the addresses in routes of the broker that gets requests or sends at *address*.

        Without a pass over all routes: many brokers may fail together.
        """
        possible = {address}
        if self.config.vip_channel:
            with suppress(ConfigError):
                possible |= before_vip(address)
        return [
            each for each in possible if self.routes.names(each) and address in self._both(each)
        ]

    def _advice(self, address: str) -> str:
        """Return what the user can do about a broker that was never reachable."""
        if address in self._connection_numbers or not self._named(address):
            return ""
        return ADVERTISED

    def _describe(self, groups: Collection[str] | None) -> HeartbeatData | None:
        """Return the heartbeat of *groups*, None: of all; None if none of them is registered."""
        producers: Iterable[str] = self._producers
        consumers: Iterable[InnerConsumer] = self._consumers.values()
        if groups is not None:
            producers = [each for each in groups if each in self._producers]
            consumers = [self._consumers[each] for each in groups if each in self._consumers]
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in producers],
            consumer_data_set=[self._consumer_data(each) for each in consumers],
        )
        return data if data.producer_data_set or data.consumer_data_set else None

    def _consumer_data(self, consumer: InnerConsumer) -> ConsumerData:
        data = consumer.heartbeat_data()
        return replace(data, unit_mode=True) if self.config.unit_mode else data

    def _heartbeat_addresses(self) -> set[str]:
        if not self._producers and not self._consumers:
            return set()
        return self.routes.addresses(masters_only=not self._consumers)

    async def _keep_addresses(self) -> None:
        while True:
            await self.name_servers.wait_until_due(self.config.namesrv_refresh_interval_seconds)
            await self.name_servers.refresh()
            brokers = {*self.routes.addresses(), *self.send_addresses()}
            in_use = {*brokers, *self.name_servers.addresses}
            self.remoting.retain(in_use)
            self.heartbeats.retain(in_use)
            for address in self._connection_numbers.keys() - in_use:
                del self._connection_numbers[address]

    def __reduce__(self) -> NoReturn:
        raise copy_error("an MQClientInstance")

    def _fail(self, cause: BaseException) -> None:
        self.failure = cause
        reason = f"the client failed: {cause!r}"
        self.remoting.close(reason)
        self.replies.close(ClosedError(reason))
        for client in (*self._producers.values(), *self._consumers.values(), *self._readers):
            client.on_failed(cause)


def loop_for(what: str) -> asyncio.AbstractEventLoop:
    """Return the running event loop, in which *what* is started.

    :raises NotRunningError: there is none
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        reason = "needs an asyncio event loop, such as that of asyncio.run(); trio has none"
        raise NotRunningError(f"{what} {reason}") from None


def other_loop_error(what: str, loop: asyncio.AbstractEventLoop, way_out: str) -> NotRunningError:
    """Return the error for a call from another loop than *loop*, in which *what* was started."""
    if loop.is_closed():
        ended = f"{what} ended with its event loop, which is closed: {MAKE_ANOTHER}, and close it"
        return NotRunningError(f"{ended} there")
    return NotRunningError(f"{what} belongs to another event loop; {way_out}")


def _register(table: dict[str, C], client: C) -> None:
    if client.group in table:
        raise ConfigError("group", client.group, "this client has a member of this group already")
    table[client.group] = client


def _local_address(namesrv: str | None) -> str:
    """Return the local address of the route to the name servers, else that of the default route.

    Sends nothing, and resolves no host names, because a lookup can block.
    """
    hosts: list[str] = []
    with suppress(ConfigError):  # the URL of an address server
        hosts = [parse_address(each)[0] for each in parse_addresses(namesrv or "")]
    for host in (*hosts, *ANYWHERE):
        with suppress(OSError):
            return _source_address(host)
    return LOOPBACK


def _source_address(host: str) -> str:
    """Return the local address from which packets to *host* are sent; OSError: there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.inet_pton(family, host)  # raises for names
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, PROBE_PORT))  # of UDP: only chooses the route
        return str(probe.getsockname()[0])
