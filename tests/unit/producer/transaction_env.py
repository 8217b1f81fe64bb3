"""Test environment: a transaction producer on a scripted cluster."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.broker.store import StoredMessage
from rocketmq_aio.instance.hook_runner import AnySendHook
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.half_message import HalfMessage
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.producer.transaction.transaction import Transaction
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.requests.send import EndTransaction
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster

END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def make_halves(number: int, *, process: int = 1) -> Iterator[HalfMessage]:
    """Make half messages of a *process* that sends 10 in each millisecond."""
    ids = MessageIdGenerator(b"\x7f\x00\x00\x01", process, salt=0)
    for each in range(number):
        yield HalfMessage(ids.next_id(1_700_000_000_000 + each // 10), "orders")


class CheckRecorder:
    """A check function that records its calls and returns *result*."""

    def __init__(self, result: object = TransactionState.UNKNOWN) -> None:
        self.calls: list[MessageExt] = []
        self.result = result

    async def __call__(self, message: MessageExt) -> TransactionState:
        self.calls.append(message)
        result = self.result(message) if callable(self.result) else self.result
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, BaseException):
            raise result
        return cast(TransactionState, result)  # or any other object


class HeldCheck:
    """A check that commits when it is released; *asked* has its messages."""

    def __init__(self) -> None:
        self.asked: list[MessageExt] = []
        self._released = asyncio.Event()

    async def __call__(self, message: MessageExt) -> TransactionState:
        self.asked.append(message)
        await self._released.wait()
        return TransactionState.COMMIT

    def release(self) -> None:
        self._released.set()


@dataclass
class TransactionEnv:
    """A transaction producer, its cluster, and its check."""

    cluster: FakeCluster
    producer: TransactionProducer
    check: CheckRecorder

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.broker

    @property
    def visible(self) -> list[bytes]:
        """The bodies that consumers can see."""
        return [each.body for broker in self.cluster.brokers for each in broker.messages("orders")]

    @property
    def open(self) -> list[StoredMessage]:
        """The half messages without a decision."""
        return [half for broker in self.cluster.brokers for half in broker.transactions.open]

    async def commit(self, message: Message, **arguments: Any) -> Transaction:  # noqa: ANN401
        """Send *message* in a transaction whose local part does nothing."""
        async with self.producer.transaction(message, **arguments) as transaction:
            return transaction

    def ends(self) -> list[EndTransaction]:
        return [
            read_header(command, EndTransaction)
            for broker in self.cluster.brokers
            for command in broker.requests_of(END)
        ]

    def flags(self) -> list[int]:
        """The decisions that brokers got, in order."""
        return [each.commit_or_rollback for each in self.ends()]

    async def run_check(self, count: int) -> list[int]:
        """Have the broker check once; return all decisions when there are *count*."""
        await self.broker.check_transactions()
        await self.broker.wait_for(END, count)
        return self.flags()


@asynccontextmanager
async def open_transactions(
    *,
    check: Callable[[MessageExt], Any] | None = None,
    version: str = "5.5.0",
    brokers: int = 1,
    config: ProducerConfig | None = None,
    client: ClientConfig | None = None,
    check_concurrency: int = 16,
    hooks: tuple[AnySendHook, ...] = (),
) -> AsyncIterator[TransactionEnv]:
    """Yield a started transaction producer whose cluster has the topic ``orders``."""
    recorder = CheckRecorder()
    async with FakeCluster(brokers=brokers, version=version, topics={"orders": 4}) as cluster:
        at = replace(client or ClientConfig(), namesrv=cluster.namesrv)
        async with TransactionProducer(
            "till",
            check=check or recorder,
            client=at,
            config=config,
            check_concurrency=check_concurrency,
            hooks=hooks,
        ) as producer:
            yield TransactionEnv(cluster, producer, recorder)
