"""Fake broker in the test process: responds like a real one unless a test sets a handler."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Iterable
from typing import Final

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.properties import PRODUCER_GROUP
from rocketmq_aio.protocol.codes import JSON_HEADER, ONEWAY_FLAG, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import RequestHeader
from tests.fakes.assignments import Assignments
from tests.fakes.connection import FakeConnection
from tests.fakes.delays import Delays
from tests.fakes.locks import Locks
from tests.fakes.members import Members
from tests.fakes.offsets import Offsets
from tests.fakes.pops import Pops
from tests.fakes.pulls import Pulls
from tests.fakes.replies import Replies
from tests.fakes.script import Outcome, Reply
from tests.fakes.send_backs import SendBacks
from tests.fakes.sends import Sends
from tests.fakes.server import FakeServer
from tests.fakes.state import BrokerState, Refused, now_ms
from tests.fakes.store import READ_WRITE, Incoming, Store, Stored, Topic
from tests.fakes.timers import Timers
from tests.fakes.transactions import Transactions

GET_BROKER_RUNTIME_INFO: Final = 28
TEMPLATE_TOPIC: Final = "TBW102"
TEMPLATE_QUEUES: Final = 8
TEMPLATE_PERM: Final = 7  # read, write, inherit


class FakeBroker(FakeServer):
    """Topics, offsets and groups in memory; they survive `restart`.

    :param version: "5.5.0" or "4.9.7", where the two differ
    :param answers: header encoding of responses: "json" or "request"; default: the version's
    :param auto_create_topics: a send creates its topic, the default of brokers
    :param auto_create_groups: heartbeats and pulls create their group, the default of brokers
    :param tls: accept TLS only
    """

    def __init__(
        self,
        *,
        name: str = "broker-a",
        version: str = "5.5.0",
        answers: str | None = None,
        cluster: str = "DefaultCluster",
        auto_create_topics: bool = True,
        auto_create_groups: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(version, answers, tls)
        store = Store(self.version, cluster)
        self.state = BrokerState(
            name, cluster, self.version, store, auto_create_topics, auto_create_groups
        )
        self.members = Members(self.state, self._notify_members, self._push_to)
        self.pulls = Pulls(self.state, self.members)
        self.pops = Pops(self.state, self.pulls)
        self.assignments = Assignments(self.state, self.members)
        self.locks = Locks()
        self.delays = Delays(store)
        backs = SendBacks(self.state, self.locks, self.delays)
        self.transactions = Transactions(self.state)
        self.timers = Timers(self.state)
        sends = Sends(self.state, self.delays, backs, self.transactions, self.timers)
        replies = Replies(self.state, self.members, sends, self._push_to)
        groups = (self.members, self.assignments, self.locks)
        parts = (
            sends,
            replies,
            self.timers,
            self.transactions,
            backs,
            self.pulls,
            self.pops,
            Offsets(self.state),
            *groups,
        )
        self._answers = {code: answer for part in parts for code, answer in part.answers().items()}
        self._answers[GET_BROKER_RUNTIME_INFO] = self._runtime_info
        if auto_create_topics:
            self.create_topic(TEMPLATE_TOPIC, TEMPLATE_QUEUES, TEMPLATE_PERM)

    async def start(self) -> None:
        await super().start()
        self.locks.owners.clear()  # kept in memory only
        self.state.store.host = ("127.0.0.1", self.port)

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def topics(self) -> dict[str, Topic]:
        return self.state.store.topics

    def create_topic(self, name: str, queues: int = 4, perm: int = READ_WRITE) -> None:
        self.state.store.create_topic(name, queues, perm)

    def create_group(self, name: str) -> None:
        self.state.groups.add(name)

    def put(self, topic: str, body: bytes, *, queue_id: int = 0, properties: str = "") -> Stored:
        """Store a message as if a producer had sent it."""
        incoming = Incoming(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties.encode(),
            born_ms=now_ms(),
        )
        return self.state.store.append(incoming, now_ms())

    def messages(self, topic: str, queue_id: int | None = None) -> list[Stored]:
        """Return the stored messages by queue."""
        queues = self.topics[topic].queues
        chosen = queues if queue_id is None else [queues[queue_id]]
        return [stored for log in chosen for stored in log.messages]

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of the group."""
        return self.state.committed.get((group, topic, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset as if a member had."""
        self.state.groups.add(group)
        self.state.committed[group, topic, queue_id] = offset

    async def ask_about_transactions(self) -> int:
        """Check every open half message with a connected producer; return the number of checks."""
        asked = 0
        for half in self.transactions.open:
            group = half.properties.get(PRODUCER_GROUP, "")
            numbers = [n for n in self.members.producers.get(group, {}) if n in self.connections]
            if numbers:
                _, question = self.transactions.move(half)
                await self.push(question, to=self.connections[numbers[0]])
                asked += 1
        return asked

    def answer(self, command: Command, connection: FakeConnection) -> Outcome | Awaitable[Outcome]:
        known = self._answers.get(command.code)
        if known is None:
            remark = f" request type {command.code} not supported"
            return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return known(command, connection)
        except Refused as refused:
            return refused.reply
        except CodecError as fault:  # brokers fail on missing fields like this
            remark = f"java.lang.NullPointerException: {fault}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)

    def closed(self, connection: FakeConnection) -> None:
        super().closed(connection)
        self.members.disconnected(connection.number)

    def _runtime_info(self, _command: Command, _connection: FakeConnection) -> Reply:
        table = {
            "brokerVersionDesc": self.version.name,
            "brokerActive": "true",
            "commitLogMaxOffset": str(self.state.store.log_end),
            "dispatchBehindBytes": "0",
        }
        return Reply(body=msgspec.json.encode({"table": table}))

    async def _push_to(
        self, header: RequestHeader, body: bytes, number: int, seconds: float
    ) -> Command | None:
        connection = self.connections.get(number)
        if connection is None:
            raise ConnectionError("closed")
        return await self.push(header, body=body, to=connection, seconds=seconds)

    def _notify_members(self, group: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            connection = self.connections.get(number)
            if connection is not None:
                code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                notice = Command(code, next(self._opaques), ONEWAY_FLAG)
                ext = {"consumerGroup": group}
                notice.ext = ext
                self._send(connection, notice, ext, JSON_HEADER, code)
