"""What brokers ask about transactions, and what they are answered."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction import checks as transaction_checks
from rocketmq_aio.producer.transaction.checks import CheckFunction
from rocketmq_aio.producer.transaction.half_message import HalfMessage, HalfMessageLocation
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.script import Reply
from tests.unit.producer.transaction_env import COMMIT, END, ROLLBACK, UNKNOWN, Till, open_till
from tests.unit.remoting.until import until

ORDER = Message("orders", b'"paid"', keys="42")


async def leave_open(till: Till, count: int = 1) -> list[str]:
    """Leave transactions to the check; return their message ids."""
    ids = []
    for _ in range(count):
        async with till.producer.transaction(ORDER) as tx:
            tx.unknown()
        ids.append(tx.message_id)
    return ids


# --- what the application answers ----------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize(
    ("answer", "flag", "visible"),
    [
        (TransactionState.COMMIT, COMMIT, 1),
        (TransactionState.ROLLBACK, ROLLBACK, 0),
        (TransactionState.UNKNOWN, UNKNOWN, 0),
    ],
)
async def test_the_application_decides_what_was_left_open(
    version: str, answer: TransactionState, flag: int, visible: int
) -> None:
    async with open_till(version=version) as till:
        (message_id,) = await leave_open(till)
        till.ledger.answer = answer

        assert await till.ask(1) == [flag]
        (message,) = till.ledger.asked
        assert (message.message_id, message.topic, message.keys) == (message_id, "orders", ("42",))
        assert (message.body, message.queue.topic) == (b'"paid"', "orders")
        assert len(till.visible) == visible
        (end,) = till.ends()
        assert end.from_transaction_check is True
        assert (end.msg_id, end.transaction_id) == (message_id, message_id)
        assert (end.topic, end.producer_group) == ("orders", "till")
        assert len(till.open) == (answer is TransactionState.UNKNOWN)


async def test_a_broker_that_was_told_unknown_asks_again() -> None:
    async with open_till() as till:
        await leave_open(till)
        await till.ask(1)
        till.ledger.answer = TransactionState.COMMIT

        assert await till.ask(2) == [UNKNOWN, COMMIT]


@pytest.mark.parametrize(
    "answer",
    [ValueError("no database"), asyncio.CancelledError(), GeneratorExit(), None, "COMMIT"],
)
async def test_a_check_that_gives_no_answer_means_unknown(answer: object) -> None:
    async with open_till() as till:
        await leave_open(till)
        till.ledger.answer = answer

        assert await till.ask(1) == [UNKNOWN]


async def test_a_check_that_hangs_means_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "CHECK_SECONDS", 0.05)
    async with open_till() as till:
        await leave_open(till)
        till.ledger.answer = lambda message: asyncio.Event().wait()

        assert await till.ask(1) == [UNKNOWN]


async def test_a_plain_check_runs_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def check(message: MessageExt) -> TransactionState:
        threads.append(threading.current_thread())
        return TransactionState.COMMIT

    async with open_till(check=check) as till:
        await leave_open(till)

        assert await till.ask(1) == [COMMIT]
        assert threads != [threading.main_thread()]


async def test_plain_checks_that_hang_take_no_more_threads_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_checks, "CHECK_SECONDS", 0.05)
    resume = threading.Event()
    running: list[threading.Thread] = []

    def check(message: MessageExt) -> TransactionState:
        running.append(threading.current_thread())
        resume.wait(60)
        return TransactionState.COMMIT

    try:
        async with open_till(check=check, check_concurrency=2) as till:
            await leave_open(till, 3)
            for count in (3, 6, 9):
                assert await till.ask(count) == [UNKNOWN] * count
            assert len(running) == 2
            resume.set()
            monkeypatch.setattr(transaction_checks, "CHECK_SECONDS", 60)
            assert await till.ask(12) == [UNKNOWN] * 9 + [COMMIT] * 3
            assert len(set(running)) == 2
    finally:
        resume.set()


async def test_a_plain_check_that_raises_stop_iteration_means_unknown() -> None:
    def check(message: MessageExt) -> TransactionState:
        return next(iter(()))

    async with open_till(check=check) as till:
        await leave_open(till)

        assert await till.ask(1) == [UNKNOWN]


async def test_the_threads_of_plain_checks_end_with_the_producer() -> None:
    threads: list[threading.Thread] = []

    def check(message: MessageExt) -> TransactionState:
        threads.append(threading.current_thread())
        return TransactionState.COMMIT

    async with open_till(check=check) as till:
        await leave_open(till)
        await till.ask(1)

    await asyncio.to_thread(threads[0].join, 15)
    assert not threads[0].is_alive()


async def test_the_message_of_a_check_is_decoded_as_its_bodies_are_made() -> None:
    async with open_till(config=ProducerConfig(codec=JSONCodec(str))) as till:
        await leave_open(till)
        await till.ask(1)

        assert [message.value for message in till.ledger.asked] == ["paid"]


# --- what is known here --------------------------------------------------------------------------


async def test_a_check_while_the_local_part_runs_is_answered_unknown() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER):
            assert await till.ask(1) == [UNKNOWN]

        assert (till.flags(), till.ledger.asked) == ([UNKNOWN, COMMIT], [])
        assert (len(till.visible), till.open) == (1, [])


async def test_a_check_before_the_answer_to_the_half_message_is_answered_unknown() -> None:
    async with open_till() as till:
        held = till.broker.hold(RequestCode.SEND_MESSAGE_V2, times=1)

        async def commit() -> None:
            async with till.producer.transaction(ORDER):
                pass

        sending = asyncio.create_task(commit())
        await held.wait(1)
        assert await till.ask(1) == [UNKNOWN]
        held.release()
        await sending

        # The message has moved before the broker asked: it is committed where it is now.
        assert (len(till.visible), till.open) == (1, [])


async def test_a_check_while_the_decision_is_on_its_way_is_answered_unknown() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            held = till.broker.hold(END, times=1)
            ending = asyncio.create_task(tx.commit())
            await held.wait(1)
            till.broker.transactions.reopen(tx.message_id)
            assert await till.ask(2) == [COMMIT, UNKNOWN]
            held.release()
            await ending

        assert len(till.visible) == 1


async def test_a_rolled_back_message_is_rolled_back_again() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            await tx.rollback()
        till.broker.transactions.reopen(tx.message_id)

        assert await till.ask(2) == [ROLLBACK, ROLLBACK]
        assert (till.visible, till.ledger.asked) == ([], [])


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_check_after_a_confirmed_commit_discards_the_copy(version: str) -> None:
    async with open_till(version=version) as till:
        async with till.producer.transaction(ORDER) as tx:
            pass
        till.broker.transactions.reopen(tx.message_id)

        # First the broker is asked to end a transaction that it never had, which it refuses.
        assert await till.ask(3) == [COMMIT, ROLLBACK, ROLLBACK]
        assert (len(till.visible), till.open, till.ledger.asked) == (1, [], [])


async def test_a_broker_is_examined_once_per_connection() -> None:
    async with open_till() as till:
        for count in (3, 5):
            async with till.producer.transaction(ORDER) as tx:
                pass
            till.broker.transactions.reopen(tx.message_id)
            await till.ask(count)
        assert till.flags() == [COMMIT, ROLLBACK, ROLLBACK, COMMIT, ROLLBACK]

        await till.broker.restart()
        await till.producer.client.heartbeats.send(till.broker.address)
        async with till.producer.transaction(ORDER) as tx:
            pass
        till.broker.transactions.reopen(tx.message_id)
        await till.ask(8)
        assert till.flags()[5:] == [COMMIT, ROLLBACK, ROLLBACK]
        assert (len(till.visible), till.open) == (3, [])


async def test_a_commit_confirmed_by_a_proxy_is_repeated_when_the_broker_checks() -> None:
    async with open_till() as till:
        till.broker.transactions.behind_proxy = True
        for _ in range(3):
            async with till.producer.transaction(ORDER) as tx:
                pass
            assert tx.result is not None
            assert tx.result.confirmed
        assert till.visible == []  # the proxy has dropped the commits

        await till.broker.ask_about_transactions()
        await until(lambda: not till.open)

        assert (len(till.visible), till.ledger.asked) == (3, [])


async def test_a_rollback_confirmed_by_a_proxy_is_repeated_when_the_broker_checks() -> None:
    async with open_till() as till:
        till.broker.transactions.behind_proxy = True
        async with till.producer.transaction(ORDER) as tx:
            await tx.rollback()

        assert await till.ask(2) == [ROLLBACK, ROLLBACK]
        assert (till.visible, till.open) == ([], [])


@pytest.mark.parametrize(
    "outcome",
    [
        Reply(ResponseCode.SYSTEM_ERROR, remark="java.lang.NullPointerException"),
        Reply(ResponseCode.SYSTEM_BUSY, remark="system busy"),
        Reply(),
    ],
)
async def test_a_commit_is_repeated_unless_the_peer_refuses_unknown_transactions(
    outcome: Reply,
) -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            pass
        till.broker.transactions.reopen(tx.message_id)
        till.broker.on(END, lambda command, connection: outcome, times=1)

        assert await till.ask(3) == [COMMIT, ROLLBACK, COMMIT]


async def test_a_check_by_another_broker_than_the_one_that_confirmed_repeats_the_commit() -> None:
    async with open_till(brokers=2) as till:
        async with till.producer.transaction(ORDER) as tx:
            pass
        first, second = till.cluster.brokers
        if tx.sent.queue.broker_name == second.name:
            first, second = second, first
        # A new master, which may not have the commit.
        first.transactions.replicate(tx.message_id, second.transactions)
        await till.producer.client.heartbeats.send(second.address)
        await second.ask_about_transactions()
        await second.wait_for(END, 1)

        assert till.flags() == [COMMIT, COMMIT]
        assert len(second.messages("orders")) == 1


async def test_a_broker_that_fell_after_it_confirmed_is_told_again() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            pass
        await till.broker.restart()
        till.broker.transactions.reopen(tx.message_id)
        await till.producer.client.heartbeats.send(till.broker.address)

        assert await till.ask(2) == [COMMIT, COMMIT]
        assert till.ledger.asked == []


async def test_what_the_application_decided_is_not_asked_again() -> None:
    async with open_till() as till:
        (message_id,) = await leave_open(till)
        till.ledger.answer = TransactionState.ROLLBACK
        await till.ask(1)
        till.broker.transactions.reopen(message_id)

        assert await till.ask(2) == [ROLLBACK, ROLLBACK]
        assert len(till.ledger.asked) == 1


async def test_another_member_answers_for_one_that_is_gone() -> None:
    async with open_till() as till:
        await leave_open(till)
        await till.producer.close()
        await until(lambda: not till.broker.connections)

        async def check(message: MessageExt) -> TransactionState:
            return TransactionState.COMMIT

        async with TransactionProducer(
            "till", check=check, namesrv=till.cluster.namesrv, topics=["orders"]
        ):
            # It has sent nothing, and is known to the broker all the same.
            assert await till.ask(1) == [COMMIT]


# --- many of them --------------------------------------------------------------------------------


async def test_no_more_checks_run_at_once_than_allowed() -> None:
    running, most, gate = 0, 0, asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return TransactionState.COMMIT

    async with open_till(check=check, check_concurrency=3) as till:
        await leave_open(till, 10)
        await till.broker.ask_about_transactions()
        await until(lambda: running == 3)
        gate.set()
        await till.broker.wait_for(END, 10)

        assert (most, till.flags()) == (3, [COMMIT] * 10)


async def test_a_second_check_of_one_message_waits_for_the_first_and_gets_its_answer() -> None:
    gate = asyncio.Event()
    asked: list[MessageExt] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        await gate.wait()
        return TransactionState.COMMIT

    async with open_till(check=check) as till:
        await leave_open(till)
        await till.broker.ask_about_transactions()
        await until(lambda: asked)
        await till.broker.ask_about_transactions()
        # Whatever else the client does with that broker comes after the second check.
        await till.producer.send(ORDER)
        gate.set()
        await till.broker.wait_for(END, 1)
        await until(lambda: not till.open)

        assert (len(asked), till.flags(), len(till.visible)) == (1, [COMMIT], 2)


async def test_a_flood_of_checks_is_dropped_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_WAITING", 2)
    gate = asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        await gate.wait()
        return TransactionState.COMMIT

    async with open_till(check=check, check_concurrency=1) as till:
        await leave_open(till, 3)
        await till.broker.ask_about_transactions()
        await till.producer.send(ORDER)
        gate.set()
        await till.broker.wait_for(END, 2)

        assert await till.ask(3) == [COMMIT] * 3
        assert till.open == []


async def test_checks_that_wait_when_the_producer_closes_are_left_to_other_members() -> None:
    gate = asyncio.Event()
    asked: list[MessageExt] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        await gate.wait()
        return TransactionState.COMMIT

    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
    ):
        producer = TransactionProducer("till", check=check, client=client, check_concurrency=1)
        async with producer:
            for _ in range(2):
                async with producer.transaction(ORDER) as tx:
                    tx.unknown()
            await cluster.broker.ask_about_transactions()
            await until(lambda: asked)
            await producer.send(ORDER)
        gate.set()
        await cluster.broker.wait_for(END, 1)
        async with Producer("till", client=client) as other:
            await other.send(ORDER)

        assert (len(asked), len(cluster.broker.requests_of(END))) == (1, 1)


async def test_a_group_without_a_transaction_producer_answers_nothing() -> None:
    async with open_till() as till:
        await leave_open(till)
        await till.producer.close()
        async with Producer("till", namesrv=till.cluster.namesrv) as plain:
            await plain.send(ORDER)
            await plain.client.heartbeats.send_all()
            await till.broker.ask_about_transactions()
            await plain.send(ORDER)

        assert till.flags() == []


async def test_the_producers_of_a_shared_client_are_asked_for_their_own_groups() -> None:
    groups: list[tuple[str, str | None]] = []

    def noting(group: str) -> CheckFunction:
        async def check(message: MessageExt) -> TransactionState:
            groups.append((group, message.property("PGROUP")))
            return TransactionState.COMMIT

        return check

    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        TransactionProducer("first", check=noting("first"), client=client) as first,
        TransactionProducer("second", check=noting("second"), client=client) as second,
    ):
        for producer in (first, second):
            async with producer.transaction(ORDER) as tx:
                tx.unknown()
        assert await cluster.broker.ask_about_transactions() == 2
        await cluster.broker.wait_for(END, 2)

    assert sorted(groups) == [("first", "first"), ("second", "second")]


# --- what hooks see ------------------------------------------------------------------------------


class Decided:
    """Notes how transactions end."""

    def __init__(self) -> None:
        self.seen: list[EndTransactionContext] = []

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.seen.append(context)


async def test_hooks_see_the_decision_after_a_check_during_the_local_part() -> None:
    hook = Decided()
    async with open_till(hooks=(hook,)) as till, till.producer.transaction(ORDER):
        await till.ask(1)

    assert [(each.state, each.from_check) for each in hook.seen] == [
        (TransactionState.UNKNOWN, True),
        (TransactionState.COMMIT, False),
    ]
    assert hook.seen[1].message.body == ORDER.body


async def test_hooks_see_one_end_of_a_commit_whose_copy_is_discarded() -> None:
    hook = Decided()
    async with open_till(hooks=(hook,)) as till:
        async with till.producer.transaction(ORDER) as tx:
            pass
        till.broker.transactions.reopen(tx.message_id)
        await till.ask(3)

    assert [each.state for each in hook.seen] == [TransactionState.COMMIT]


async def test_remembered_decisions_keep_no_messages() -> None:
    class Order(Message):
        """Can be watched by a weak reference."""

    class Deaf:
        def end_transaction(self, context: EndTransactionContext) -> None: ...

    alive = weakref.WeakSet[Message]()

    def order() -> Message:
        message = Order("orders", b"paid")
        alive.add(message)
        return message

    async with open_till(hooks=(Deaf(),)) as till:
        async with till.producer.transaction(order()):
            await till.ask(1)
        async with till.producer.transaction(order()) as tx:
            tx.unknown()
        del tx
        till.broker.on(RequestCode.SEND_MESSAGE_V2, lambda *_: None)
        entering = asyncio.create_task(till.producer.transaction(order()).__aenter__())
        await till.broker.wait_for(RequestCode.SEND_MESSAGE_V2, 3)
        entering.cancel()
        await asyncio.wait([entering])
        del entering

        gc.collect()
        assert len(alive) == 0


# --- what is remembered --------------------------------------------------------------------------


def half(message_id: str) -> HalfMessage:
    return HalfMessage(
        message_id, "orders", location=HalfMessageLocation("127.0.0.1:1", "broker-a", 0, 0)
    )


def test_the_oldest_decisions_are_forgotten() -> None:
    log = TransactionLog(max_decisions=2)
    for name in "abc":
        log.decide(half(name), TransactionState.COMMIT)

    assert [log.find(name) is not None for name in "abc"] == [False, True, True]


def test_a_copy_at_another_broker_does_not_change_where_the_message_is() -> None:
    there = half("a")
    location = there.location
    there.on_check(HalfMessageLocation("127.0.0.1:2", "broker-b", 5, 5))

    assert there.location is location
