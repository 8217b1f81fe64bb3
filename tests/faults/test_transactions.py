"""Transactions under faults: transaction states match the stored messages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import UNIQ_KEY
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction import end_transaction
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import EndTransaction
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.fakes.direction import Cut
from tests.fakes.frame_rules import PassingFrame, Rule, drop
from tests.fakes.proxy import FaultProxy
from tests.history import Recorder, check
from tests.history.producing import PRODUCING
from tests.history.recording import stored_log
from tests.history.transactions import TRANSACTIONS
from tests.unit.remoting.until import until

SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
BEAT, CHECK = RequestCode.HEART_BEAT, RequestCode.CHECK_TRANSACTION_STATE
COUNT = 24
ROUNDS = 10  # maximum check rounds after the faults have ended


@pytest.fixture(autouse=True)
def records_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted brokers record the end of a transaction before they respond."""
    monkeypatch.setattr(end_transaction, "RECORD_SECONDS", 0.0)
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 0.0)


class FailedError(Exception):
    """Error of a failing local transaction."""


def cut(_frame: PassingFrame) -> list[bytes]:
    """End the connection instead of passing the frame."""
    raise Cut(reset=True)


@dataclass
class Run:
    """Transactions of one producer: a third each commits, rolls back and stays open."""

    recorder: Recorder
    producer: TransactionProducer
    broker: FakeBroker
    wanted: dict[str, TransactionState] = field(default_factory=dict)  # by body
    refused: set[str] = field(default_factory=set)

    async def one(self, number: int) -> None:
        body = f"{number}"
        message = Message("orders", body.encode())
        try:
            async with self.producer.transaction(message) as tx:
                self.wanted[body] = tuple(TransactionState)[number % 2]
                if number % 3 == 0:
                    tx.unknown()
                elif self.wanted[body] is TransactionState.ROLLBACK:
                    raise FailedError
        except RocketMQError:
            self.refused.add(body)
        except FailedError:
            pass

    async def be_asked(self) -> None:
        """Run checks until every half message has a state."""
        await until(lambda: self.broker.members.producers.get("till"), "a producer to ask")
        for _ in range(ROUNDS):
            if not self.broker.transactions.open:
                break
            await self.broker.check_transactions()
            asked: defaultdict[str, set[int]] = defaultdict(set)
            for half in self.broker.transactions.open:
                asked[half.properties[UNIQ_KEY]].add(half.log_offset)
            # A repeated send may store a message twice: one check may resolve both.
            while any(self._answered.isdisjoint(places) for places in asked.values()):
                await self.broker.wait_for(END, len(self.broker.requests_of(END)) + 1)

    @property
    def _answered(self) -> set[int]:
        return {end.commit_log_offset for end in self._ends() if end.from_transaction_check}

    def _ends(self) -> list[EndTransaction]:
        return [read_header(each, EndTransaction) for each in self.broker.requests_of(END)]

    def violations(self) -> list[object]:
        """Return violated rules, and undecided transactions."""
        history = self.recorder.history
        history.log = stored_log("orders", self.broker)
        history.drained = True
        kept = {entry.message_id for entry in history.log}
        undecided = {h.properties[UNIQ_KEY] for h in self.broker.transactions.open} - kept
        return [*check(history, *PRODUCING, *TRANSACTIONS), *undecided]


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Run, FaultProxy]]:
    """Yield transactions whose broker is behind a proxy."""
    runs: list[Run] = []

    recorder = Recorder()

    async def state_of(message: MessageExt) -> TransactionState:
        return runs[0].wanted.get(message.body.decode(), TransactionState.UNKNOWN)

    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        FaultProxy(cluster.broker.address) as proxy,
        recorder.transaction_producer(
            "till",
            check=state_of,
            client=ClientConfig(namesrv=cluster.namesrv, address_mapper=proxy.map_address),
            config=ProducerConfig(send_timeout_seconds=1),
        ) as producer,
    ):
        runs.append(Run(recorder, producer, cluster.broker))
        yield runs[0], proxy


@pytest.mark.parametrize("rule", [drop, cut])
@pytest.mark.parametrize("upward", [True, False], ids=["request", "answer"])
@pytest.mark.parametrize("code", [SEND, END, BEAT], ids=["half", "end", "heartbeat"])
async def test_lost_frames_change_no_transaction_state(
    code: RequestCode, upward: bool, rule: Rule
) -> None:
    async with running() as (run, proxy):
        direction = proxy.up if upward else proxy.down
        direction.on(rule, code=code, times=3)
        await asyncio.gather(*(run.one(number) for number in range(COUNT)))
        direction.off()
        # After the faults: an ordinary transaction over an open connection.
        await run.one(COUNT + 2)
        await run.be_asked()

        assert run.violations() == []
        assert len(run.wanted) + len(run.refused) == COUNT + 1


async def test_a_lost_check_is_repeated() -> None:
    async with running() as (run, proxy):
        await asyncio.gather(*(run.one(number) for number in range(COUNT)))
        lost = proxy.down.hold(code=CHECK)
        halves = {half.properties[UNIQ_KEY] for half in run.broker.transactions.open}
        await lost.wait(await run.broker.check_transactions())
        proxy.down.off()
        await run.be_asked()

        assert len(halves) == COUNT // 3  # a repeated send may store one twice
        assert run.violations() == []


@pytest.mark.parametrize("moment", ["half", "local part", "end"])
async def test_a_broker_restarted_at_any_stage_gets_every_transaction_state(moment: str) -> None:
    async with running() as (run, proxy):
        await run.one(2)
        code = {"half": SEND, "local part": SEND, "end": END}[moment]
        held = (proxy.up if moment == "half" else proxy.down).hold(code=code)
        tasks = [asyncio.create_task(run.one(number)) for number in range(4, 12)]
        await held.wait(1)
        if moment == "local part":
            held.release()
        await run.broker.restart()
        proxy.up.off()
        proxy.down.off()
        await asyncio.gather(*tasks)
        await run.one(COUNT + 2)
        await run.be_asked()

        assert run.violations() == []


@pytest.mark.parametrize("upward", [True, False], ids=["answer", "question"])
async def test_a_broker_restarted_during_a_check_gets_the_state_later(upward: bool) -> None:
    async with running() as (run, proxy):
        await asyncio.gather(*(run.one(number) for number in range(COUNT)))
        held = proxy.up.hold(code=END) if upward else proxy.down.hold(code=CHECK)
        asked = await run.broker.check_transactions()
        await held.wait(1)
        await run.broker.restart()
        proxy.up.off()
        proxy.down.off()
        await run.one(COUNT + 2)  # over an open connection
        await run.be_asked()

        assert asked > 0
        assert run.violations() == []


async def test_an_idle_producer_decides_transactions_after_a_restart_of_the_broker() -> None:
    async with running() as (run, _):
        await run.one(6)  # the application does not say how it ended
        await run.broker.restart()
        await run.be_asked()

        assert run.violations() == []


async def test_producers_of_a_group_share_its_checks() -> None:
    wanted: dict[str, TransactionState] = {}

    async def check(message: MessageExt) -> TransactionState:
        return wanted[message.body.decode()]

    def producer(cluster: FakeCluster) -> TransactionProducer:
        return TransactionProducer("till", check=check, namesrv=cluster.namesrv, topics=["orders"])

    async with FakeCluster(topics={"orders": 4}) as cluster:
        async with producer(cluster) as first, producer(cluster):
            async with first.transaction(Message("orders", b"a")) as tx:
                wanted["a"] = TransactionState.COMMIT
                tx.unknown()
            await first.close()
            assert await cluster.broker.check_transactions() == 1
            await cluster.broker.wait_for(END)

        assert [each.body for each in cluster.broker.messages("orders")] == [b"a"]
