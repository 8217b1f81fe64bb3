"""Whole clients against servers that change their responses.

Every call returns or raises a `RocketMQError`; afterwards the clients work as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from rocketmq_aio import (
    AdminClient,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    PopConfig,
    PopConsumer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.name_server import EmbeddedNameServer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.embedded.server import EmbeddedServer
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import JSON_HEADER
from rocketmq_aio.protocol.command import Command
from tests.fuzz.corpus import RECORDS
from tests.fuzz.mutation import VALUES, Mutator

TOPIC: Final = "orders"
GROUP: Final = "billing"
CALL_SECONDS: Final = 60.0  # far more than any timeout of the clients
RECOVERY_SECONDS: Final = 100.0  # more than a pull whose response was lost takes
POLL_SECONDS: Final = 0.2
PARTS: Final = ("code", "ext", "body", "remark")
CODES: Final = (0, 0, 0, 1, 2, 3, 10, 11, 12, 16, 17, 19, 20, 21, 22, 24, 25, 26, 206, 207, 210)
SPARED: Final = 0.5  # of the responses: calls of several requests get to the last one


class Mutation:
    """Changes responses while it is on.

    :ivar counts: changed responses by request code
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.counts: Counter[int] = Counter()
        self.on = False
        self._mutator = Mutator(self.random)

    def response(self, code: int, response: Response) -> Response:
        """Return *response* to a request of *code*, perhaps with a field, body or code changed."""
        if not self.on or self.random.random() < SPARED:
            return response
        self.counts[code] += 1
        parts: dict[str, Any] = {name: getattr(response, name) for name in PARTS}
        choice = self.random.random()
        if choice < 0.4 and response.ext:
            return Response(**{**parts, "ext": self._fields(dict(response.ext))})
        if choice < 0.8 and response.body:
            return Response(**{**parts, "body": self._body(response.body)})
        if choice < 0.9:
            return Response(**{**parts, "code": self.random.choice(CODES)})
        remark = "a\r\nb\x1b[2J\u2028" * 9
        return Response(**{**parts, "code": self.random.choice(CODES), "remark": remark})

    def frame(self, frame: bytes) -> bytes:
        """Return *frame*, seldom with other bytes or twice."""
        if not self.on or self.random.random() > 0.05:
            return frame
        if self.random.random() < 0.3:
            return frame + frame
        return self._mutator.change(frame)

    def _fields(self, ext: dict[str, str]) -> dict[str, str]:
        name = self.random.choice(list(ext))
        if self.random.random() < 0.2:
            del ext[name]
        else:
            value = self.random.choice(VALUES)
            ext[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return ext

    def _body(self, body: bytes) -> bytes:
        if body[:1] == b"{":
            return self._mutator.change_json(body)
        return self._mutator.change(body, RECORDS)


class MutatedServer(EmbeddedServer):
    """A server whose responses are changed."""

    mutation: Mutation

    def frame(self, command: Command, response: Response, encoding: int = JSON_HEADER) -> bytes:
        changed = self.mutation.response(command.code, response)
        return self.mutation.frame(super().frame(command, changed, encoding))


class MutatedBroker(MutatedServer, EmbeddedBroker):
    """A broker whose responses are changed."""


class MutatedNameServer(MutatedServer, EmbeddedNameServer):
    """A name server whose responses are changed."""


class MutatedCluster(EmbeddedCluster):
    """A cluster whose responses are changed."""

    broker_class = MutatedBroker
    name_server_class = MutatedNameServer


class Log(logging.Handler):
    """Checks what clients log: one line each, without control characters."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not text.isprintable() or "background_task_failed" in text:
            self.faults.append(text)
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RocketMQError) and not str(error).isprintable():
            self.faults.append(repr(error))


class Clients:
    """One client of each kind, and calls of all that send requests."""

    def __init__(self, cluster: MutatedCluster, random: Random) -> None:
        known = {each.address for each in cluster.servers}
        broker = cluster.brokers[0].address
        client = ClientConfig(
            namesrv=cluster.namesrv,
            address_mapper=lambda address: address if address in known else broker,
            request_timeout_seconds=0.3,
            connect_timeout_seconds=0.5,
            heartbeat_interval_seconds=1,
            route_refresh_interval_seconds=0.5,
            header_encoding=random.choice(("json", "rocketmq")),
            verify_checksums=random.random() < 0.5,
        )
        sends = ProducerConfig(send_timeout_seconds=1.0)
        pulls: dict[str, Any] = {"long_poll_seconds": 0.2, "rebalance_interval_seconds": 0.5}
        self._handled: set[bytes] = set()
        self._changed = asyncio.Event()
        self.producer = Producer("shop", client=client, config=sends)
        self.transactions = TransactionProducer(
            "tills", client=client, config=sends, check=lambda _: TransactionState.COMMIT
        )
        self.pull = PullConsumer("pullers", client=client)
        self.pop = PopConsumer("poppers", client=client, config=PopConfig(wait_seconds=0.2))
        self.lite = LitePullConsumer(
            GROUP, client=client, config=LitePullConfig(start_from="earliest", **pulls)
        )
        self.push = PushConsumer(
            "pushed",
            client=client,
            config=PushConfig(start_from="earliest", **pulls),
            on_message=self._handle,
        )
        self.admin = AdminClient(client=client)
        self._random = random

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for each in (self.producer, self.transactions, self.pull, self.pop, self.lite):
                await stack.enter_async_context(each)
            await stack.enter_async_context(self.admin)
            await self.push.subscribe(TOPIC)
            await stack.enter_async_context(self.push)
            await self.lite.subscribe(TOPIC)
            await self.pop.subscribe(TOPIC)
            yield

    async def _handle(self, message: Any) -> None:  # noqa: ANN401 - MessageExt
        self._handled.add(message.body)
        self._changed.set()

    async def has_handled(self, body: bytes) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._changed.wait()
        self._changed.clear()
        return body in self._handled

    async def read_lite(self, body: bytes) -> bool:
        try:
            return body in {each.body for each in await self.lite.poll(POLL_SECONDS)}
        except RocketMQError:  # of a start offset that was read before
            return False

    async def read_popped(self, body: bytes) -> bool:
        try:
            return body in {each.body for each in await self.pop.receive(wait_seconds=POLL_SECONDS)}
        except RocketMQError:
            return False

    def calls(self) -> list[Callable[[], Awaitable[object]]]:
        admin, pull, queue = self.admin, self.pull, MessageQueue(TOPIC, "broker-a", 0)
        now = datetime.now(UTC)
        return [
            lambda: self.producer.send(Message(TOPIC, b"one", keys="k")),
            lambda: self.producer.send_batch([Message(TOPIC, b"a"), Message(TOPIC, b"b")]),
            lambda: self.producer.send_oneway(Message(TOPIC, b"oneway")),
            lambda: self.producer.publish_queues(TOPIC),
            self._transaction,
            lambda: self.lite.poll(0.1),
            lambda: self.lite.commit(),
            lambda: self.lite.lag(),
            self._popped,
            lambda: pull.pull(queue, 0),
            lambda: pull.pull_raw(queue, 0),
            lambda: pull.min_offset(queue),
            lambda: pull.max_offset(queue),
            lambda: pull.committed(queue),
            lambda: pull.commit(queue, 0),
            lambda: pull.offset_for_time(queue, now),
            lambda: pull.message_queues(TOPIC),
            lambda: admin.topic_config(TOPIC),
            lambda: admin.topic_route(TOPIC),
            lambda: admin.topic_stats(TOPIC),
            lambda: admin.topic_groups(TOPIC),
            admin.list_topics,
            admin.list_groups,
            admin.cluster_info,
            admin.broker_stats,
            lambda: admin.create_topic(TOPIC, queues=2),
            lambda: admin.group_config(GROUP),
            lambda: admin.consumer_connections(GROUP),
            lambda: admin.producer_connections("shop"),
            lambda: admin.group_progress(GROUP),
            lambda: admin.group_progress(GROUP, TOPIC),
            lambda: admin.reset_offsets("unused", TOPIC, "earliest"),
            lambda: admin.reset_offsets("unused", TOPIC, now),
            lambda: admin.query_messages(TOPIC, "k"),
            lambda: admin.find_message(TOPIC, "0" * 32),
            self._viewed,
        ]

    async def _transaction(self) -> None:
        async with self.transactions.transaction(Message(TOPIC, b"half")):
            pass

    async def _popped(self) -> None:
        messages = await self.pop.receive(wait_seconds=0.1)
        for message in messages[:1]:
            await self.pop.change_invisible(message, 5)
        await self.pop.ack(messages)

    async def _viewed(self) -> None:
        result = await self.producer.send(Message(TOPIC, b"seen"))
        await self.admin.view_message(result.offset_message_id)


async def fuzz_clients(seed: int, calls: int) -> Counter[int]:
    """Make *calls* calls with changed responses; return the number of changed ones by code.

    :raises AssertionError: a call raised another error, or did not end; a client did not recover;
        an unsafe text was logged; a background task failed
    """
    mutation, log, errors = Mutation(seed), Log(), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(str(context)))
    logger = logging.getLogger("rocketmq_aio")
    MutatedServer.mutation = mutation
    logger.addHandler(log)
    try:
        async with MutatedCluster(topics={TOPIC: 2}) as cluster:
            clients = Clients(cluster, mutation.random)
            async with clients.started():
                mutation.on = True
                for _ in range(calls):
                    await _call(mutation.random.choice(clients.calls()), seed)
                mutation.on = False
                await _recovered(clients, seed)
    finally:
        logger.removeHandler(log)
        loop.set_exception_handler(None)
    assert not log.faults, f"seed {seed}: {log.faults[:3]}"
    assert not errors, f"seed {seed}: {errors[:3]}"
    return mutation.counts


async def _call(call: Callable[[], Awaitable[object]], seed: int) -> None:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await call()
    except RocketMQError as error:
        text = str(error)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    else:
        return
    assert text.isprintable(), f"seed {seed}: {text!r}"


async def _recovered(clients: Clients, seed: int) -> None:
    """Check that each client works again; sends go on, since brokers lied about offsets."""
    body = b"recovered %d" % seed
    async with asyncio.timeout(RECOVERY_SECONDS):
        for got in (clients.read_lite, clients.has_handled, clients.read_popped):
            await _until(partial(clients.producer.send, Message(TOPIC, body)))
            while not await got(body):
                await _until(partial(clients.producer.send, Message(TOPIC, body)))
        await _until(clients.admin.cluster_info)


async def _until(call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
    """Return the result of *call*, once it succeeds: a backoff of the past may have to end."""
    while True:
        try:
            return await call()
        except RocketMQError:
            await asyncio.sleep(0.1)
