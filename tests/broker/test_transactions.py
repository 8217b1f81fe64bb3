"""Transactions on a real broker: committed messages are stored once, others never."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.producer.transaction.transaction import TransactionResult
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Broker, Cluster
from tests.broker.reading import read_topic, wait_for_messages
from tests.fakes.frame_rules import drop
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import until, until_done

EXAMPLE = Path(__file__).parents[2] / "examples" / "transaction.py"
QUEUES = 4
TASKS = 8
EACH = 10  # transactions of each kind
RESOLVED_SECONDS = 60.0  # brokers check by their own clock, and busy machines are slow
CHECKED = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
CHECK, END = RequestCode.CHECK_TRANSACTION_STATE, RequestCode.END_TRANSACTION


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A broker with a short check interval that tests kill."""
    # 4.9 and 5.x stop after 15 checks.
    return fresh_cluster(broker_properties=CHECKED | {"transactionCheckMax": "100"})


@pytest.fixture
def broker(cluster: Cluster) -> Iterator[Broker]:
    broker = cluster.brokers[0]
    yield broker
    cluster.check_running()


@pytest.fixture
def topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"transactions-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=QUEUES)
    yield name
    cluster.delete_topic(name)


@dataclass
class Ledger:
    """The application's store: the state of each transaction by message body."""

    ended: dict[str, TransactionState] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    async def check(self, message: MessageExt) -> TransactionState:
        body = message.body.decode()
        self.asked[body] += 1
        return self.ended.get(body, TransactionState.UNKNOWN)

    @property
    def committed(self) -> list[str]:
        return sorted(b for b, state in self.ended.items() if state is TransactionState.COMMIT)


@asynccontextmanager
async def producing(
    cluster: Cluster,
    group: str,
    ledger: Ledger,
    *,
    mapper: Callable[[str], str] | None = None,
    topics: tuple[str, ...] = (),
    seconds: float = 5.0,
) -> AsyncIterator[TransactionProducer]:
    async with TransactionProducer(
        group,
        check=ledger.check,
        client=ClientConfig(namesrv=cluster.namesrv, address_mapper=mapper),
        config=ProducerConfig(send_timeout_seconds=seconds),
        topics=topics,
    ) as producer:
        yield producer


async def visible(cluster: Cluster, topic: str, count: int) -> list[str]:
    """Return the visible messages when there are *count*."""
    found = await asyncio.to_thread(
        wait_for_messages, cluster, topic, count, queues=QUEUES, seconds=RESOLVED_SECONDS
    )
    return sorted(each.body.decode() for each in found)


async def visible_now(cluster: Cluster, topic: str) -> list[str]:
    found = await asyncio.to_thread(read_topic, cluster, topic, QUEUES)
    return sorted(each.body.decode() for each in found)


async def becomes_visible(cluster: Cluster, topic: str, bodies: set[str]) -> None:
    """Wait until exactly these messages are visible, duplicates allowed.

    A killed broker may have lost the state and check again, which adds a copy.
    """

    async def all_are() -> bool:
        return {*await visible_now(cluster, topic)} >= bodies

    await until_done(all_are, f"{len(bodies)} messages", RESOLVED_SECONDS)
    assert {*await visible_now(cluster, topic)} == bodies


async def commit(producer: TransactionProducer, topic: str, body: str) -> TransactionResult:
    async with producer.transaction(Message(topic, body.encode())) as tx:
        pass
    assert tx.result is not None
    return tx.result


async def test_an_idle_producer_is_checked_soon_after_a_restart_of_the_broker(
    fresh_cluster: Callable[..., Cluster], rocketmq_group: str
) -> None:
    # The broker gives up on a transaction after eight checks, two seconds apart.
    limits = {"transactionCheckInterval": "2000", "transactionCheckMax": "8"}
    cluster = await asyncio.to_thread(partial(fresh_cluster, broker_properties=CHECKED | limits))
    topic = f"idle-{rocketmq_group[-12:]}"
    await asyncio.to_thread(cluster.create_topic, topic, queues=QUEUES)
    ledger = Ledger()
    bodies = {f"{number}" for number in range(EACH)}
    async with producing(cluster, rocketmq_group, ledger, topics=(topic,)) as producer:
        for body in bodies:
            async with producer.transaction(Message(topic, body.encode())) as tx:
                tx.unknown()
        await asyncio.to_thread(cluster.brokers[0].kill)
        ledger.ended = dict.fromkeys(bodies, TransactionState.COMMIT)
        await asyncio.to_thread(cluster.brokers[0].start)

        await becomes_visible(cluster, topic, bodies)


# --- transaction states --------------------------------------------------------------------------


async def test_consumers_get_committed_messages_once_and_no_others(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()

    async def run(producer: TransactionProducer, kind: str, number: int) -> None:
        body = f"{kind}-{number}"
        is_commit = kind.endswith("commit")
        state = TransactionState.COMMIT if is_commit else TransactionState.ROLLBACK

        async def execute(_tx: object) -> TransactionState:
            ledger.ended[body] = state
            return TransactionState.UNKNOWN if kind.startswith("open") else state

        await producer.send_in_transaction(Message(topic, body.encode(), keys=body), execute)

    kinds = ("commit", "rollback", "open-commit", "open-rollback")
    async with producing(cluster, rocketmq_group, ledger) as producer:
        await asyncio.gather(*(run(producer, kind, n) for kind in kinds for n in range(EACH)))
        assert set(await visible_now(cluster, topic)) <= set(ledger.committed)
        seen = await visible(cluster, topic, len(ledger.committed))
        # Rolled back by a check: all open transactions have been checked.
        await until(lambda: len(ledger.asked) == 2 * EACH, "all checks", RESOLVED_SECONDS)
        # A canary opened later is resolved later.
        await run(producer, "open-commit", EACH)
        seen = await visible(cluster, topic, len(seen) + 1)

    assert seen == ledger.committed
    assert all(body.startswith("open") for body in ledger.asked)
    assert await consumed(cluster, topic, f"{rocketmq_group}-reader", len(seen)) == seen


async def consumed(cluster: Cluster, topic: str, group: str, count: int) -> list[str]:
    """Return the first *count* messages and all that are immediately available."""
    config = LitePullConfig(start_from="earliest")
    got: list[str] = []
    async with LitePullConsumer(group, namesrv=cluster.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        while len(got) < count:
            got += [m.body.decode() for m in await consumer.poll(30)]
    return sorted(got)


async def test_an_unknown_transaction_is_checked_until_resolved(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    async with producing(cluster, rocketmq_group, ledger) as producer:
        async with producer.transaction(Message(topic, b"late")) as tx:
            tx.unknown()
        await until(lambda: ledger.asked["late"] >= 2, "a second check", RESOLVED_SECONDS)
        assert await visible_now(cluster, topic) == []
        ledger.ended["late"] = TransactionState.COMMIT

        assert await visible(cluster, topic, 1) == ["late"]


async def test_a_check_during_the_local_transaction_changes_nothing(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    async with (
        FaultProxy(broker.address) as proxy,
        producing(cluster, rocketmq_group, ledger, mapper=proxy.map_address) as producer,
    ):

        def checks() -> int:
            return sum(each.request_code == CHECK for each in proxy.frames)

        async with producer.transaction(Message(topic, b"slow")) as tx:
            await until(lambda: checks() >= 2, "two checks", RESOLVED_SECONDS)
            assert await visible_now(cluster, topic) == []
        assert tx.result is not None
        assert tx.result.confirmed
        seen = await visible(cluster, topic, 1)
        # Later transactions are checked later: the checks of this one come before.
        ledger.ended["later"] = TransactionState.COMMIT
        async with producer.transaction(Message(topic, b"later")) as later:
            later.unknown()
        await visible(cluster, topic, 2)

        answers = [f for f in proxy.frames if f.request_code == END and f.upward]
        flags = [each.command.ext_fields()["commitOrRollback"] for each in answers]
        assert flags[:2] == ["0", "0"]
        assert flags.count("8") == 2
    assert seen == ["slow"]
    assert await visible_now(cluster, topic) == ["later", "slow"]
    assert ledger.asked.keys() == {"later"}


async def test_commits_that_overlap_checks_are_stored_once(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    async with (
        FaultProxy(broker.address) as proxy,
        producing(cluster, rocketmq_group, ledger, mapper=proxy.map_address) as producer,
    ):

        async def commit_after(seconds: float, body: str) -> None:
            async with producer.transaction(Message(topic, body.encode())) as tx:
                await asyncio.sleep(seconds)
            assert tx.result is not None
            assert tx.result.confirmed

        # The broker checks transactions older than a second once a second.
        bodies = [f"{number:03}" for number in range(120)]
        await asyncio.gather(*(commit_after(int(b) / 50, b) for b in bodies))
        async with producer.transaction(Message(topic, b"canary")) as tx:
            tx.unknown()
        await until(lambda: ledger.asked["canary"] >= 4, "four rounds of checks", RESOLVED_SECONDS)

        assert await visible_now(cluster, topic) == bodies
        ledger.ended["canary"] = TransactionState.ROLLBACK
        ends = [f for f in proxy.frames if f.request_code == END and f.upward]
        flags = Counter(each.command.ext_fields()["commitOrRollback"] for each in ends)
        assert flags["8"] == len(bodies)


async def test_transaction_example_publishes_only_stored_orders(
    cluster: Cluster, topic: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLE)),
        *("--namesrv", cluster.namesrv, "--topic", topic),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RESOLVED_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = output.decode().splitlines()

    assert process.returncode == 0, lines
    assert {"jam is rolled back", "check of cake"} <= set(lines)
    assert lines[-1] == "announced: cake, tea"


# --- faults --------------------------------------------------------------------------------------


async def test_a_lost_end_transaction_is_recovered_by_the_check(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    async with (
        FaultProxy(broker.address) as proxy,
        producing(cluster, rocketmq_group, ledger, mapper=proxy.map_address, seconds=2) as producer,
    ):
        proxy.up.on(drop, code=END, times=2)
        lost = await asyncio.gather(
            commit(producer, topic, "lost"), _rolled_back(producer, topic, "lost too")
        )
        assert [each.confirmed for each in lost] == [False, False]

        assert await visible(cluster, topic, 1) == ["lost"]
        ledger.ended["canary"] = TransactionState.COMMIT
        async with producer.transaction(Message(topic, b"canary")) as canary:
            canary.unknown()
        assert await visible(cluster, topic, 2) == ["canary", "lost"]
    assert ledger.asked.keys() == {"canary"}


async def _rolled_back(producer: TransactionProducer, topic: str, body: str) -> TransactionResult:
    async with producer.transaction(Message(topic, body.encode())) as tx:
        return await tx.rollback()


async def test_another_member_replies_for_a_killed_process(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    bodies = {"done": TransactionState.COMMIT, "undone": TransactionState.ROLLBACK}
    for body in bodies:
        command = ("-m", "tests.broker.transaction_worker", cluster.namesrv, rocketmq_group, topic)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, body, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline()
        process.kill()
        await process.wait()
    # No member is left: the next one finds the states of the dead ones in the ledger.
    ledger.ended |= bodies
    async with producing(cluster, rocketmq_group, ledger, topics=(topic,)):
        await until(lambda: set(ledger.asked) == set(bodies), "both checks", RESOLVED_SECONDS)

        assert await visible(cluster, topic, 1) == ["done"]


async def test_a_broker_killed_during_the_local_transaction_gets_the_state_later(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    async with producing(cluster, rocketmq_group, ledger, seconds=2) as producer:
        await commit(producer, topic, "before")
        async with producer.transaction(Message(topic, b"across")) as tx:
            await asyncio.to_thread(broker.kill)
        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, False)
        await asyncio.to_thread(broker.start)

        await becomes_visible(cluster, topic, {"across", "before"})
    assert ledger.asked["across"] == 0


async def test_no_local_transaction_runs_while_the_broker_is_down(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    ledger = Ledger()
    async with producing(cluster, rocketmq_group, ledger, seconds=2) as producer:
        await commit(producer, topic, "before")
        await asyncio.to_thread(broker.kill)
        with pytest.raises(RocketMQError):
            async with producer.transaction(Message(topic, b"never")):
                pytest.fail("the local part ran")
        await asyncio.to_thread(broker.start)
        await until(lambda: not producer.client.remoting.backoff_left(broker.address), "a try", 60)
        await commit(producer, topic, "after")

        await becomes_visible(cluster, topic, {"after", "before"})


async def test_a_broker_killed_under_load_loses_no_transaction_state(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    ledger, stopped = Ledger(), asyncio.Event()
    async with producing(cluster, rocketmq_group, ledger, seconds=2) as producer:
        tasks = [
            asyncio.create_task(keep_deciding(producer, topic, ledger, f"task-{n}", stopped))
            for n in range(TASKS)
        ]
        await until(lambda: len(ledger.ended) > 100, "some transactions")
        # Half messages, end requests and checks are in flight at that moment.
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        decided = len(ledger.ended)
        await until(lambda: len(ledger.ended) > decided + 50, "more transactions", 60)
        stopped.set()
        await asyncio.gather(*tasks)

        await becomes_visible(cluster, topic, set(ledger.committed))


async def keep_deciding(
    producer: TransactionProducer, topic: str, ledger: Ledger, name: str, stopped: asyncio.Event
) -> None:
    """Cycle through commit, rollback and open."""
    number = 0
    while not stopped.is_set():
        number += 1
        body = f"{name}-{number}"
        state = TransactionState.ROLLBACK if number % 3 == 0 else TransactionState.COMMIT
        reported = TransactionState.UNKNOWN if number % 5 == 0 else state
        decide = partial(decided_as, ledger, body, state, reported)
        with suppress(RocketMQError):
            await producer.send_in_transaction(Message(topic, body.encode()), decide)
        # A restarted broker checks thousands of transactions each second, more than it can end.
        await asyncio.sleep(0.05)


async def decided_as(
    ledger: Ledger, body: str, state: TransactionState, reported: TransactionState, _tx: object
) -> TransactionState:
    """Record *state* as the local transaction and send *reported* to the broker."""
    ledger.ended[body] = state
    return reported
