"""Embedded broker: a server with the processors of a RocketMQ broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, Unpack

from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.embedded.broker.acl import AccessControl, AccountLike, NoAccessControl
from rocketmq_aio.embedded.broker.admin import AdminProcessor
from rocketmq_aio.embedded.broker.assignments import AssignmentProcessor
from rocketmq_aio.embedded.broker.clients import ClientProcessor
from rocketmq_aio.embedded.broker.delay_levels import DelayLevels
from rocketmq_aio.embedded.broker.events import Event, EventCallback, MessageStored
from rocketmq_aio.embedded.broker.forwarding import ForwardingProcessor
from rocketmq_aio.embedded.broker.groups import GroupProcessor
from rocketmq_aio.embedded.broker.locks import LockProcessor
from rocketmq_aio.embedded.broker.offsets import OffsetProcessor
from rocketmq_aio.embedded.broker.pop import PopProcessor
from rocketmq_aio.embedded.broker.pull import PullProcessor
from rocketmq_aio.embedded.broker.queries import QueryProcessor
from rocketmq_aio.embedded.broker.read_only import check_writable
from rocketmq_aio.embedded.broker.replies import ReplyProcessor
from rocketmq_aio.embedded.broker.send import SendProcessor
from rocketmq_aio.embedded.broker.send_back import SendBackProcessor
from rocketmq_aio.embedded.broker.state import (
    LIGHT_QUEUES,
    MAX_BYTES,
    MULTI_DISPATCH,
    BrokerState,
    ErrorResponse,
)
from rocketmq_aio.embedded.broker.static_topics import StaticTopics
from rocketmq_aio.embedded.broker.statistics import StatisticsProcessor
from rocketmq_aio.embedded.broker.store import (
    READ_WRITE,
    MessageStore,
    NewMessage,
    QueueLog,
    StoredMessage,
    Topic,
)
from rocketmq_aio.embedded.broker.timers import TimerProcessor
from rocketmq_aio.embedded.broker.topics import TopicProcessor
from rocketmq_aio.embedded.broker.transactions import TransactionProcessor
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import handlers_of
from rocketmq_aio.embedded.loop_thread import from_any_thread, waits_for_clients
from rocketmq_aio.embedded.responses import HandlerResult
from rocketmq_aio.embedded.server import EmbeddedServer, ServerOptions
from rocketmq_aio.errors import CodecError, ConfigError
from rocketmq_aio.model.address import VIP_OFFSET
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.properties import PRODUCER_GROUP, parse_properties
from rocketmq_aio.protocol.bodies import MAX_QUEUES
from rocketmq_aio.protocol.codes import MASTER_ID, ONEWAY_FLAG, RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import RequestHeader, to_ext_fields
from rocketmq_aio.protocol.requests.from_broker import NotifyConsumerIdsChanged

PORT_TRIES: Final = 10  # to find two free ports


class EmbeddedBroker(EmbeddedServer):
    """Topics, offsets and groups in memory; they survive `restart`.

    The other parameters are those of `EmbeddedCluster`.

    :param master: make a replica of it, which has its messages and offsets and rejects writes
    :ivar disk_full: reject writes as a broker with a full disk does
    :ivar replicas: made with this broker as their master; slaves, with the broker ids 1, 2 ...,
        until `promote`
    :ivar copies: this broker, its master or its replicas, which share one state
    """

    @checked_arguments
    def __init__(
        self,
        *,
        name: str = "broker-a",
        version: str = "5.5.0",
        cluster: str = "DefaultCluster",
        auto_create_topics: bool = True,
        auto_create_groups: bool = True,
        light_queues: bool = False,
        max_bytes: int = MAX_BYTES,
        accounts: Iterable[AccountLike] = (),
        master: EmbeddedBroker | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(version, **options)
        self.name = name
        self.disk_full = False
        self.replicas: list[EmbeddedBroker] = []
        self._checks = count()  # of transactions
        self.copies: list[EmbeddedBroker] = [self] if master is None else master.copies
        if master is None:
            self.broker_id = MASTER_ID
            store = MessageStore(self.version, cluster, self.clock, max_bytes)
            auto_create = auto_create_topics, auto_create_groups
            self.state = BrokerState(name, cluster, self.version, store, self.clock, *auto_create)
            if light_queues:
                self.state.update_settings({LIGHT_QUEUES: "true", MULTI_DISPATCH: "true"})
            self.acl = AccessControl(self.version, cluster, accounts)
            self.transactions = TransactionProcessor(self.state, self._send_check)
            self.pops = PopProcessor(self.state)
            self.delays = DelayLevels(store)
            self.timers = TimerProcessor(self.state)
        else:
            master.replicas.append(self)
            self.copies.append(self)
            self.broker_id = len(master.replicas)
            self.state, self.acl = master.state, master.acl
            self.transactions, self.pops = master.transactions, master.pops
            self.delays, self.timers = master.delays, master.timers
        self.members = ClientProcessor(self.state, self._notify_members)
        self.assignments = AssignmentProcessor(self.state, self.members)
        self.locks = LockProcessor(self.clock)
        self.static_topics = StaticTopics(self.state, self.run_handler)
        self._handlers = handlers_of(self.version.major, *self._processors())

    def _processors(self) -> tuple[object, ...]:
        state, members = self.state, self.members
        backs = SendBackProcessor(state, self.locks, self.delays)
        sends = SendProcessor(state, self.delays, backs, self.transactions, self.timers)
        replies = ReplyProcessor(state, members, sends, self._push_to)
        clients = (members, self.assignments, self.locks)
        messages = (sends, backs, replies, self.timers, self.transactions, QueryProcessor(state))
        reads = (PullProcessor(state, members), self.pops, OffsetProcessor(state))
        topics = (TopicProcessor(state), GroupProcessor(state))
        admin = (StatisticsProcessor(state, members), AdminProcessor(state, self))
        forwarding = ForwardingProcessor(state, members, self._push_to)
        acl = self.acl if self.acl.enabled else NoAccessControl()
        return (*clients, *messages, *reads, *topics, *admin, forwarding, acl)

    async def _listen(self, port: int) -> list[asyncio.Server]:
        """Listen on the VIP port as well, unless another program has it."""
        tries = 1 if port else PORT_TRIES
        while True:
            tries -= 1
            [first] = await super()._listen(port)
            try:
                return [first, await self._bind(max(self.port - VIP_OFFSET, 0))]
            except OSError:
                if not tries:
                    return [first]
                first.close()
            except BaseException:
                first.close()
                raise

    async def _start(self) -> None:
        await super()._start()
        self.locks.owners.clear()  # kept in memory only
        if self.is_master:
            self.state.store.host = (self.bound_host, self.port)

    @property
    def is_master(self) -> bool:
        """Whether it is the master, also after `promote`."""
        return self.broker_id == MASTER_ID

    @from_any_thread
    def promote(self) -> None:
        """Make this replica the master and its master a replica, as a controller does.

        Messages, offsets, popped and half messages stay; locks and members are known to the new
        master only if clients have registered with it.
        """
        old = self._master
        old.broker_id, self.broker_id = self.broker_id, MASTER_ID
        if self.is_running:
            self.state.store.host = (self.bound_host, self.port)

    @property
    def _master(self) -> EmbeddedBroker:
        return next(each for each in self.copies if each.is_master)

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics by name, with retry and dead-letter topics."""
        return self.state.store.topics

    @checked_arguments
    @from_any_thread
    def create_topic(self, name: str, queues: int = 4, perm: int = READ_WRITE) -> None:
        """Create a topic.

        :raises ValueError: clients and brokers accept no such topic
        """
        check_topic(name)
        if not 0 <= queues <= MAX_QUEUES:
            raise ValueError(f"topic {name}: queues={queues}: expected 0 to {MAX_QUEUES}")
        self.state.store.create_topic(name, queues, perm)

    @checked_arguments
    @from_any_thread
    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; without effect if there is none."""
        self.state.delete_topic(name)

    def on_event(self, callback: EventCallback) -> None:
        """Call *callback* with each stored message, and with what groups get and commit.

        Its exceptions do not fail requests: they are added to `errors`.
        """

        def notify(event: Event) -> None:
            try:
                callback(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - the message is stored, whatever it does
                self.errors.append(error)

        self.state.on_event = notify
        self.state.store.on_stored = lambda message: notify(MessageStored(self.name, message))

    @checked_arguments
    @from_any_thread
    def create_group(self, name: str) -> None:
        """Create a consumer group with default settings."""
        self.state.create_group(name)

    @checked_arguments
    @from_any_thread
    def put(
        self, topic: str, body: bytes, *, queue_id: int = 0, properties: str = ""
    ) -> StoredMessage:
        """Store a message as if a producer had sent it.

        :raises ConfigError: there is no such queue
        """
        self._logs(topic, queue_id)
        parsed, now = parse_properties(properties.encode()), self.clock.now_ms()
        return self.state.store.append(
            NewMessage(topic=topic, queue_id=queue_id, body=body, properties=parsed, born_ms=now)
        )

    @checked_arguments
    @from_any_thread
    def messages(self, topic: str, queue_id: int | None = None) -> list[StoredMessage]:
        """Return the stored messages by queue.

        :raises ConfigError: there is no such topic or queue
        """
        light = self.state.store.light_queues.get(topic)
        logs = self._logs(topic, queue_id) if light is None else [light]
        return [stored for log in logs for stored in log.messages]

    def _logs(self, topic: str, queue_id: int | None) -> Sequence[QueueLog]:
        if topic not in self.topics:
            raise ConfigError("topic", topic, f"{self.name} has {', '.join(self.topics) or 'none'}")
        logs = self.topics[topic].queues
        if queue_id is not None and queue_id >= len(logs):
            raise ConfigError("queue_id", queue_id, f"topic {topic} has {len(logs)} queues")
        return logs if queue_id is None else [logs[queue_id]]

    @checked_arguments
    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset; None: nothing was ever committed."""
        return self.state.committed.get((group, topic, queue_id))

    @checked_arguments
    @from_any_thread
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset as if a member had."""
        self.state.create_group(group)
        self.state.commit(group, topic, queue_id, offset)

    @waits_for_clients
    async def check_transactions(self) -> int:
        """Check every open half message with a connected producer; return the number of checks."""
        checks = 0
        for half in self.transactions.open:
            if self._master._producers_of(half.properties.get(PRODUCER_GROUP, "")):
                self._send_check(*self.transactions.store_check(half))
                checks += 1
        return checks

    def process(self, command: Command, connection: ServerConnection) -> HandlerResult:
        try:
            if self.acl.enabled:
                self.acl.check(command, connection)
            if self.disk_full or self.broker_id != MASTER_ID:
                check_writable(command, self.version, is_master=self.is_master)
            if self.state.mappings:
                return self.static_topics.process(command, connection)
            return self.run_handler(command, connection)
        except (ErrorResponse, CodecError) as error:
            return self.error_outcome(error)

    def run_handler(self, command: Command, connection: ServerConnection) -> HandlerResult:
        """Execute a request about queues of this broker, without the checks of `process`."""
        return self._handlers.get(command.code, self.not_supported)(command, connection)

    def closed(self, connection: ServerConnection) -> None:
        super().closed(connection)
        self.members.disconnected(connection.number)

    async def _push_to(
        self, request: RequestHeader | Command, number: int, seconds: float
    ) -> Command | None:
        if number not in self.connections:
            raise ConnectionError("closed")
        return await self.push(request, to=self.connections[number], seconds=seconds)

    def _producers_of(self, group: str) -> list[ServerConnection]:
        return self._connected(self.members.producers.get(group, {}))

    def _connected(self, numbers: Iterable[int]) -> list[ServerConnection]:
        return [self.connections[number] for number in numbers if number in self.connections]

    def _send_check(self, group: str, check: Command) -> None:
        """Send a transaction check to the producers of *group* in turn, if any is connected."""
        master = self._master
        if producers := master._producers_of(group):
            check.opaque = next(master._opaques)
            connection = producers[next(master._checks) % len(producers)]
            master._send(connection, check)

    def _notify_members(self, group: str, numbers: Iterable[int]) -> None:
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        ext = to_ext_fields(NotifyConsumerIdsChanged(consumer_group=group))
        for connection in self._connected(numbers):
            self._send(connection, Command(code, next(self._opaques), ONEWAY_FLAG, ext=ext))
