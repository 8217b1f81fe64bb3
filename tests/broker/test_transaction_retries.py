"""Transactions on two real brokers: a retry can store the half message at both of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.protocol.codes import TRANSACTION_COMMIT, RequestCode
from rocketmq_aio.testing import Cluster
from tests.broker.reading import wait_for_messages
from tests.fakes.direction import Cut
from tests.fakes.frame_rules import PassingFrame, Rule
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import until

CHECKED = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "1000",
}
SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
CHECK = RequestCode.CHECK_TRANSACTION_STATE
CANARY = b"canary"
SECONDS = 60.0  # brokers check by their own clock, and busy machines are slow


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    return fresh_cluster(brokers=2, broker_properties=CHECKED)


class Links:
    """The proxies of both brokers; the first frame of a kind can cut its connection."""

    def __init__(self, proxies: list[FaultProxy]) -> None:
        self.proxies = proxies

    def address_of(self, advertised: str) -> str:
        for proxy in self.proxies:
            if proxy.target == advertised:
                return proxy.address
        return advertised

    def cut_first(self, code: int, *, upward: bool, flag: str | None = None) -> list[FaultProxy]:
        """Cut the connection instead of the first frame; return the proxies where it happened.

        :param flag: of requests to end a transaction
        """
        cut: list[FaultProxy] = []

        def rule_of(proxy: FaultProxy) -> Rule:
            def rule(frame: PassingFrame) -> Iterable[bytes]:
                fields = dict(frame.command.ext_fields()) if upward else {}
                if cut or fields.get("commitOrRollback") != flag:
                    return (frame.data,)
                cut.append(proxy)
                raise Cut(reset=True)

            return rule

        for proxy in self.proxies:
            direction = proxy.up if upward else proxy.down
            direction.on(rule_of(proxy), code=code, times=None)
        return cut

    def cut_first_commit(self, *, executed: bool) -> list[FaultProxy]:
        flag = None if executed else str(TRANSACTION_COMMIT)
        return self.cut_first(END, upward=not executed, flag=flag)

    async def wait_for_checks(self, message_id: str, count: int) -> None:
        """Wait until the transaction has been checked *count* times."""

        def is_done() -> bool:
            checks = [each for proxy in self.proxies for each in proxy.frames if is_check(each)]
            return len(checks) >= count

        def is_check(frame: PassingFrame) -> bool:
            return frame.request_code == CHECK and message_id.encode() in frame.data

        await until(is_done, f"{count} checks", SECONDS)


@dataclass
class Run:
    """A producer that reaches both brokers through proxies."""

    cluster: Cluster
    topic: str
    links: Links
    producer: TransactionProducer
    asked: list[bytes]

    async def visible(self, count: int) -> list[str]:
        """Return the visible messages after both brokers have checked what was sent before.

        Later transactions are checked later.
        """
        for queue in await self.producer.publish_queues(self.topic):
            async with self.producer.transaction(Message(self.topic, CANARY), queue=queue) as tx:
                tx.unknown()
            await self.links.wait_for_checks(tx.message_id, 8)
        found = await asyncio.to_thread(
            wait_for_messages, self.cluster, self.topic, count, queues=1
        )
        return sorted(each.body.decode() for each in found)


@pytest_asyncio.fixture
async def run(cluster: Cluster, rocketmq_group: str) -> AsyncIterator[Run]:
    topic = f"retries-{rocketmq_group[-12:]}"
    await asyncio.to_thread(cluster.create_topic, topic, queues=1)
    asked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.UNKNOWN

    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(b.address)) for b in cluster.brokers]
        links = Links(proxies)
        client = ClientConfig(namesrv=cluster.namesrv, address_mapper=links.address_of)
        producer = TransactionProducer(rocketmq_group, check=check, client=client, topics=(topic,))
        yield Run(cluster, topic, links, await stack.enter_async_context(producer), asked)
    await asyncio.to_thread(cluster.delete_topic, topic)


@pytest.mark.parametrize("executed", [True, False], ids=["executed", "not-executed"])
async def test_a_commit_without_a_response_makes_one_of_two_copies_visible(
    executed: bool, run: Run
) -> None:
    stored = run.links.cut_first(SEND, upward=False)
    async with run.producer.transaction(Message(run.topic, b"order")) as tx:
        ended = run.links.cut_first_commit(executed=executed)
    assert tx.result is not None
    assert not tx.result.confirmed
    assert len(stored) == len(ended) == 1
    assert stored != ended

    assert await run.visible(1) == ["order"]
    assert set(run.asked) <= {CANARY}
