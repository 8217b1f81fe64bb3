"""Transaction checks."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from time import monotonic

import pytest
from msgspec.structs import replace

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.delay_levels import real_message
from rocketmq_aio.embedded.broker.transactions import CHECK_TIMES, HALF_TOPIC
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import HeldResponses
from rocketmq_aio.embedded.responses import HandlerResult, Response
from rocketmq_aio.errors import RequestTimeoutError
from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import UNIQ_KEY
from rocketmq_aio.model.values import MessageQueue, TransactionState
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction import checks as transaction_checks, end_transaction
from rocketmq_aio.producer.transaction.checks import CheckFunction
from rocketmq_aio.producer.transaction.half_message import HalfMessage, HalfMessageLocation
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.producer.transaction.transaction import Transaction
from rocketmq_aio.protocol.codes import RESPONSE_FLAG, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.protocol.requests.send import EndTransaction
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.producer.transaction_env import (
    COMMIT,
    END,
    ROLLBACK,
    UNKNOWN,
    HeldCheck,
    TransactionEnv,
    make_halves,
    open_transactions,
)
from tests.unit.remoting.until import settle, until

ORDER = Message("orders", b'"paid"', keys="42")


def reopen(broker: EmbeddedBroker, message_id: str) -> None:
    """Drop the decision about a message, as brokers do after an early check."""
    for half in broker.messages(HALF_TOPIC):
        if half.properties.get(UNIQ_KEY) == message_id:
            broker.transactions._open[half.log_offset] = None


def put_proxy_before(broker: EmbeddedBroker) -> None:
    """Answer END_TRANSACTION like a cluster proxy of 5.x: 0 at once.

    It is passed on only for a transaction that the broker has just checked.
    """

    def handle(command: Command, connection: ServerConnection) -> HandlerResult:
        ext = command.ext_fields()
        for half in broker.transactions.open:
            properties = half.properties
            if properties[UNIQ_KEY] == ext["transactionId"] and CHECK_TIMES in properties:
                place = {"tranStateTableOffset": half.offset, "commitLogOffset": half.log_offset}
                ext = ext | {name: str(offset) for name, offset in place.items()}
                return broker.process(replace(command, ext=ext), connection)
        return Response()

    broker.faults.handle("end_transaction", handle, times=None)


async def leave_open(env: TransactionEnv, count: int = 1) -> list[str]:
    """Leave transactions to the check; return their message ids."""
    ids = []
    for _ in range(count):
        async with env.producer.transaction(ORDER) as tx:
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
async def test_check_is_called_after_unknown(
    version: str, answer: TransactionState, flag: int, visible: int
) -> None:
    async with open_transactions(version=version) as env:
        (message_id,) = await leave_open(env)
        env.check.result = answer

        assert await env.run_check(1) == [flag]
        (message,) = env.check.calls
        assert (message.message_id, message.topic, message.keys) == (message_id, "orders", ("42",))
        assert (message.body, message.queue.topic) == (b'"paid"', "orders")
        assert len(env.visible) == visible
        (end,) = env.ends()
        assert end.from_transaction_check is True
        assert (end.msg_id, end.transaction_id) == (message_id, message_id)
        assert (end.topic, end.producer_group) == ("orders", "till")
        assert len(env.open) == (answer is TransactionState.UNKNOWN)


async def test_the_broker_repeats_the_check_after_unknown(env: TransactionEnv) -> None:
    await leave_open(env)
    await env.run_check(1)
    env.check.result = TransactionState.COMMIT

    assert await env.run_check(2) == [UNKNOWN, COMMIT]


@pytest.mark.parametrize(
    "answer", [ValueError("no database"), asyncio.CancelledError(), GeneratorExit(), None, "COMMIT"]
)
async def test_a_check_without_a_state_results_in_unknown(
    answer: object, env: TransactionEnv
) -> None:
    await leave_open(env)
    env.check.result = answer

    assert await env.run_check(1) == [UNKNOWN]


async def test_unknown_for_a_broker_that_is_gone_does_not_end_the_client(
    env: TransactionEnv,
) -> None:
    client = env.producer.client
    await leave_open(env)

    async def outlast_the_broker() -> TransactionState:
        address = env.broker.address
        await env.broker.stop()
        await until(lambda: not client.remoting.is_connected(address))
        return TransactionState.UNKNOWN

    env.check.result = lambda _: outlast_the_broker()
    await env.broker.check_transactions()
    await until(lambda: env.check.calls and not env.producer._checks._workers)
    await env.broker.start()

    assert (await env.producer.send(ORDER)).ok
    assert env.flags() == []


async def test_a_check_that_times_out_results_in_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "CHECK_SECONDS", 0.05)
    async with open_transactions() as env:
        await leave_open(env)
        env.check.result = lambda message: asyncio.Event().wait()

        assert await env.run_check(1) == [UNKNOWN]


async def test_a_plain_check_runs_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def check(message: MessageExt) -> TransactionState:
        threads.append(threading.current_thread())
        return TransactionState.COMMIT

    async with open_transactions(check=check) as env:
        await leave_open(env)

        assert await env.run_check(1) == [COMMIT]
        assert threads != [threading.main_thread()]


async def test_check_concurrency_limits_the_threads_of_hanging_checks(
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
        async with open_transactions(check=check, check_concurrency=2) as env:
            await leave_open(env, 3)
            for number in (3, 6, 9):
                assert await env.run_check(number) == [UNKNOWN] * number
            assert len(running) == 2
            resume.set()
            monkeypatch.setattr(transaction_checks, "CHECK_SECONDS", 60)
            assert await env.run_check(12) == [UNKNOWN] * 9 + [COMMIT] * 3
            assert len(set(running)) == 2
    finally:
        resume.set()


async def test_a_check_that_raises_stop_iteration_results_in_unknown() -> None:
    def check(message: MessageExt) -> TransactionState:
        return next(iter(()))

    async with open_transactions(check=check) as env:
        await leave_open(env)

        assert await env.run_check(1) == [UNKNOWN]


async def test_the_threads_of_plain_checks_end_with_the_producer() -> None:
    threads: list[threading.Thread] = []

    def check(message: MessageExt) -> TransactionState:
        threads.append(threading.current_thread())
        return TransactionState.COMMIT

    async with open_transactions(check=check) as env:
        await leave_open(env)
        await env.run_check(1)

    await asyncio.to_thread(threads[0].join, 15)
    assert not threads[0].is_alive()


async def test_the_message_of_a_check_has_the_codec() -> None:
    async with open_transactions(config=ProducerConfig(codec=JSONCodec(str))) as env:
        await leave_open(env)
        await env.run_check(1)

        assert [message.value for message in env.check.calls] == ["paid"]


# --- what is known here --------------------------------------------------------------------------


async def test_a_check_during_the_local_transaction_gets_unknown(env: TransactionEnv) -> None:
    async with env.producer.transaction(ORDER):
        assert await env.run_check(1) == [UNKNOWN]

    assert (env.flags(), env.check.calls) == ([UNKNOWN, COMMIT], [])
    assert (len(env.visible), env.open) == (1, [])


async def test_a_check_before_the_half_message_is_confirmed_gets_unknown(
    env: TransactionEnv,
) -> None:
    held = env.broker.faults.hold(RequestCode.SEND_MESSAGE_V2)

    async def commit() -> None:
        await env.commit(ORDER)

    sending = asyncio.create_task(commit())
    await held.wait(1)
    assert await env.run_check(1) == [UNKNOWN]
    held.release()
    await sending

    # The message has moved before the broker asked: it is committed where it is now.
    assert (len(env.visible), env.open) == (1, [])


async def test_a_check_while_the_decision_is_in_flight_gets_unknown(env: TransactionEnv) -> None:
    async with env.producer.transaction(ORDER) as tx:
        held = env.broker.faults.hold("end_transaction")
        ending = asyncio.create_task(tx.commit())
        await held.wait(1)
        reopen(env.broker, tx.message_id)
        assert await env.run_check(2) == [COMMIT, UNKNOWN]
        held.release()
        await ending

    assert len(env.visible) == 1


async def test_a_check_after_a_rollback_gets_rollback(env: TransactionEnv) -> None:
    async with env.producer.transaction(ORDER) as tx:
        await tx.rollback()
    reopen(env.broker, tx.message_id)

    assert await env.run_check(2) == [ROLLBACK, ROLLBACK]
    assert (env.visible, env.check.calls) == ([], [])


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_check_after_a_confirmed_commit_discards_the_copy(version: str) -> None:
    async with open_transactions(version=version) as env:
        tx = await env.commit(ORDER)
        reopen(env.broker, tx.message_id)

        # First the broker is asked to end a transaction that it never had, which it refuses.
        assert await env.run_check(3) == [COMMIT, ROLLBACK, ROLLBACK]
        assert (len(env.visible), env.open, env.check.calls) == (1, [], [])


async def test_a_check_after_thousands_of_other_decisions_discards_the_copy(
    env: TransactionEnv,
) -> None:
    tx = await env.commit(ORDER)
    for half in make_halves(30_000):
        env.producer._log.decide(half, TransactionState.COMMIT)
    reopen(env.broker, tx.message_id)

    assert await env.run_check(3) == [COMMIT, ROLLBACK, ROLLBACK]
    assert (len(env.visible), env.open, env.check.calls) == (1, [], [])


async def test_the_time_to_record_a_commit_begins_with_its_response(env: TransactionEnv) -> None:
    held = env.broker.faults.hold(END)
    committing = asyncio.create_task(env.commit(ORDER))
    await held.wait(1)
    before_response = monotonic()
    held.release()
    committed = env.producer._log.find((await committing).message_id)

    assert committed is not None
    assert committed.committed_at >= before_response


async def test_the_time_to_record_a_commit_begins_with_the_loss_of_its_connection(
    env: TransactionEnv,
) -> None:
    held = env.broker.faults.hold(END)
    committing = asyncio.create_task(env.commit(ORDER))
    await held.wait(1)
    before_loss = monotonic()
    env.producer.client.remoting.drop(env.broker.address, "cut")
    committed = env.producer._log.find((await committing).message_id)
    held.release()

    assert committed is not None
    assert committed.committed_at >= before_loss


async def test_a_commit_over_a_new_connection_is_not_repeated_for_the_copy(
    env: TransactionEnv,
) -> None:
    async with env.producer.transaction(ORDER) as tx:
        env.producer.client.remoting.drop(env.broker.address, "cut during the local transaction")
    reopen(env.broker, tx.message_id)

    assert await env.run_check(3) == [COMMIT, ROLLBACK, ROLLBACK]
    assert (len(env.visible), env.open) == (1, [])


async def test_proxies_are_detected_once_per_connection(env: TransactionEnv) -> None:
    for expected in (3, 5):
        tx = await env.commit(ORDER)
        reopen(env.broker, tx.message_id)
        await env.run_check(expected)
    assert env.flags() == [COMMIT, ROLLBACK, ROLLBACK, COMMIT, ROLLBACK]

    await env.broker.restart()
    await env.producer.client.heartbeats.start(env.broker.address)
    tx = await env.commit(ORDER)
    reopen(env.broker, tx.message_id)
    await env.run_check(8)
    assert env.flags()[5:] == [COMMIT, ROLLBACK, ROLLBACK]
    assert (len(env.visible), env.open) == (3, [])


async def test_a_commit_confirmed_by_a_proxy_is_repeated_when_the_broker_checks(
    env: TransactionEnv,
) -> None:
    put_proxy_before(env.broker)
    for _ in range(3):
        tx = await env.commit(ORDER)
        assert tx.result is not None
        assert tx.result.confirmed
    assert env.visible == []  # the proxy has dropped the commits

    await env.broker.check_transactions()
    await until(lambda: not env.open)

    assert (len(env.visible), env.check.calls) == (3, [])


async def test_a_rollback_confirmed_by_a_proxy_is_repeated_when_the_broker_checks(
    env: TransactionEnv,
) -> None:
    put_proxy_before(env.broker)
    async with env.producer.transaction(ORDER) as tx:
        await tx.rollback()

    assert await env.run_check(2) == [ROLLBACK, ROLLBACK]
    assert (env.visible, env.open) == ([], [])


@pytest.mark.parametrize(
    "outcome",
    [Response(ResponseCode.SYSTEM_ERROR, remark="java.lang.NullPointerException"), Response()],
)
async def test_a_commit_is_repeated_unless_the_peer_rejects_unknown_transactions(
    outcome: Response, env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 60.0)  # it has responded before
    tx = await env.commit(ORDER)
    reopen(env.broker, tx.message_id)
    env.broker.faults.handle("end_transaction", outcome)

    assert await env.run_check(3) == [COMMIT, ROLLBACK, COMMIT]


async def test_peers_behind_earlier_connections_are_forgotten(env: TransactionEnv) -> None:
    peers = env.producer._checks._end_transaction
    peers._peers["127.0.0.1:1"] = end_transaction.Peer(number=7, probed_at=0.0)
    tx = await env.commit(ORDER)
    reopen(env.broker, tx.message_id)
    await env.run_check(3)

    assert set(peers._peers) == {env.broker.address}


@pytest.mark.parametrize("busy", [True, False])
async def test_a_commit_is_not_repeated_while_a_busy_broker_cannot_reject_unknown_transactions(
    busy: bool, env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 60.0)
    tx = await env.commit(ORDER)
    reopen(env.broker, tx.message_id)
    if busy:
        env.broker.faults.refuse("end_transaction", ResponseCode.SYSTEM_BUSY, times=1)
    else:
        env.broker.faults.drop("end_transaction", executed=False, times=1)

    assert (await env.run_check(3))[1:] == [ROLLBACK, UNKNOWN]
    assert (await env.run_check(5))[3:] == [ROLLBACK, ROLLBACK]
    assert (len(env.visible), env.open) == (1, [])


async def test_a_commit_is_repeated_when_the_peer_rejects_nothing_for_a_minute(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 60.0)
    tx = await env.commit(ORDER)
    reopen(env.broker, tx.message_id)
    env.broker.faults.refuse("end_transaction", ResponseCode.SYSTEM_BUSY, times=3)
    assert (await env.run_check(3))[1:] == [ROLLBACK, UNKNOWN]
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 0.0)

    assert (await env.run_check(5))[3:] == [ROLLBACK, COMMIT]


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_half_message_that_a_retry_stored_at_two_brokers_becomes_visible_once(
    version: str,
) -> None:
    async with open_transactions(brokers=2, version=version) as env:
        env.cluster.faults.reset(RequestCode.SEND_MESSAGE_V2, times=1)
        tx = await env.commit(ORDER)
        (first,) = [each for each in env.cluster.brokers if each.transactions.open]
        assert first.name != tx.sent.queue.broker_name

        await env.producer.client.heartbeats.start(first.address)
        await first.check_transactions()
        await first.wait_for(END, 1)

        assert sorted(env.flags()) == [COMMIT, ROLLBACK]
        assert (len(env.visible), env.open, env.check.calls) == (1, [], [])


def flags_of(broker: FakeBroker) -> list[int]:
    ends = [read_header(command, EndTransaction) for command in broker.requests_of(END)]
    return [each.commit_or_rollback for each in ends]


async def commit_at_two_brokers(
    env: TransactionEnv, *, executed: bool = True
) -> tuple[FakeBroker, FakeBroker]:
    """Commit a message without a response; return the broker of the copy and that of the commit."""
    env.cluster.faults.reset(RequestCode.SEND_MESSAGE_V2)
    env.cluster.faults.reset(END, executed=executed)
    tx = await env.commit(ORDER)
    committed_at = tx.sent.queue.broker_name
    copy, other = sorted(env.cluster.brokers, key=lambda each: each.name == committed_at)
    assert len(copy.transactions.open) == 1
    await env.producer.client.heartbeats.start(copy.address)
    return copy, other


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("executed", [True, False])
async def test_a_commit_without_a_response_makes_no_copy_at_another_broker_visible(
    version: str, executed: bool
) -> None:
    async with open_transactions(brokers=2, version=version) as env:
        copy, other = await commit_at_two_brokers(env, executed=executed)
        await env.producer.client.heartbeats.start(other.address)
        await copy.check_transactions()
        await copy.wait_for(END, 1)
        if not executed:
            await other.check_transactions()
            await until(lambda: not other.transactions.open)
        await copy.check_transactions()
        await copy.wait_for(END, 2)

        assert len(env.visible) == 1
        assert flags_of(copy) == [UNKNOWN, UNKNOWN if executed else ROLLBACK]


@pytest.mark.parametrize("executed", [True, False])
async def test_a_commit_without_a_response_is_repeated_when_the_broker_would_have_recorded_it(
    executed: bool, env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "RECORD_SECONDS", 60.0)
    env.cluster.faults.reset(END, executed=executed)
    tx = await env.commit(ORDER)
    if executed:
        reopen(env.broker, tx.message_id)  # not recorded yet
    await env.producer.client.heartbeats.start(env.broker.address)
    await env.run_check(2)
    half = env.producer._log.find(tx.message_id)
    assert half is not None
    assert env.flags() == [COMMIT, UNKNOWN]

    half.committed_at -= 60.0

    assert await env.run_check(3) == [COMMIT, UNKNOWN, COMMIT]


@pytest.fixture
def quickly_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses count as in production; the broker has little time to show what it is."""
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 60.0)
    monkeypatch.setattr(end_transaction, "PROBE_SECONDS", 0.1)


async def commit_late(
    env: TransactionEnv, unanswered: int = 2
) -> tuple[Transaction, HeldResponses]:
    """Commit at a broker that executes *unanswered* requests too late."""
    async with env.producer.transaction(ORDER, timeout_seconds=60) as tx:
        held = env.broker.faults.hold("end_transaction", executed=False, times=unanswered)
    assert tx.result is not None
    assert isinstance(tx.result.error, RequestTimeoutError)
    return tx, held


def is_confirmed(env: TransactionEnv, tx: Transaction) -> bool:
    half = env.producer._log.find(tx.message_id)
    return half is not None and half.confirmed is not None


@pytest.mark.parametrize("others", [0, 10_000])
async def test_a_commit_confirmed_after_the_timeout_is_not_repeated(
    others: int, quickly_late: None
) -> None:
    async with open_transactions(config=ProducerConfig(send_timeout_seconds=1.0)) as env:
        tx, held = await commit_late(env)
        for half in make_halves(others):
            env.producer._log.decide(half, TransactionState.COMMIT)
        assert await env.run_check(3) == [COMMIT, ROLLBACK, UNKNOWN]  # it may still be executed
        held.release()
        await until(lambda: is_confirmed(env, tx))
        (peer,) = env.producer._checks._end_transaction._peers.values()
        await until(lambda: peer.rejects_unknown)

        # The broker has made a copy for the first check.
        assert (await env.run_check(4))[3:] == [ROLLBACK]
        assert (len(env.visible), env.open) == (1, [])


async def test_a_commit_without_a_response_is_repeated_if_the_broker_responds_to_a_later_request(
    quickly_late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "PROBE_SECONDS", 60.0)  # the probe is answered
    async with open_transactions(config=ProducerConfig(send_timeout_seconds=1.0)) as env:
        await commit_late(env, unanswered=1)

        assert await env.run_check(3) == [COMMIT, ROLLBACK, COMMIT]


async def test_a_commit_without_a_response_is_not_repeated_after_a_busy_response(
    quickly_late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy broker rejects requests before earlier ones that it has queued are executed."""
    monkeypatch.setattr(end_transaction, "PROBE_SECONDS", 60.0)  # the probe is answered
    async with open_transactions(config=ProducerConfig(send_timeout_seconds=1.0)) as env:
        await commit_late(env, unanswered=1)
        env.broker.faults.refuse("end_transaction", ResponseCode.SYSTEM_BUSY)

        assert await env.run_check(3) == [COMMIT, ROLLBACK, UNKNOWN]


async def test_a_commit_refused_after_the_timeout_is_repeated_by_the_check(
    quickly_late: None,
) -> None:
    gate = asyncio.Event()

    async def refuse(*_: object) -> Response:
        await gate.wait()
        return Response(ResponseCode.SYSTEM_BUSY)

    async with open_transactions(config=ProducerConfig(send_timeout_seconds=1.0)) as env:
        env.broker.faults.handle("end_transaction", refuse, times=1)
        tx = await env.commit(ORDER)
        half = env.producer._log.find(tx.message_id)
        assert half is not None
        assert half.unanswered_by is not None
        gate.set()
        await until(lambda: half.unanswered_by is None)

        assert await env.run_check(2) == [COMMIT, COMMIT]
        assert (len(env.visible), env.open) == (1, [])


async def test_a_late_refusal_changes_nothing_about_the_commit_at_another_broker(
    env: TransactionEnv,
) -> None:
    half = HalfMessage("0" * 32, "orders", unanswered_by="broker-b", unanswered_over=1)
    refused = Command(ResponseCode.SYSTEM_BUSY, opaque=1, flag=RESPONSE_FLAG)
    env.producer._checks._end_transaction._on_late(half, "127.0.0.1:1", "broker-a", refused)

    assert half.unanswered_by == "broker-b"


async def test_a_commit_is_repeated_when_the_broker_does_not_respond_for_a_minute(
    quickly_late: None,
) -> None:
    async with open_transactions(config=ProducerConfig(send_timeout_seconds=1.0)) as env:
        tx, _ = await commit_late(env)
        assert await env.run_check(3) == [COMMIT, ROLLBACK, UNKNOWN]
        half = env.producer._log.find(tx.message_id)
        assert half is not None

        half.committed_at -= 60.0

        assert (await env.run_check(4))[3:] == [COMMIT]


async def test_a_commit_is_repeated_at_once_when_the_connection_of_the_first_is_lost(
    quickly_late: None,
) -> None:
    async with open_transactions(config=ProducerConfig(send_timeout_seconds=1.0)) as env:
        await commit_late(env)
        env.producer.client.remoting.drop(env.broker.address, "cut after the timeout")
        await env.producer.client.heartbeats.start(env.broker.address)

        assert await env.run_check(2) == [COMMIT, COMMIT]


async def test_a_copy_is_committed_if_the_broker_that_may_have_the_commit_is_lost() -> None:
    async with open_transactions(brokers=2) as env:
        copy, other = await commit_at_two_brokers(env, executed=False)
        await other.stop()
        await copy.check_transactions()
        await copy.wait_for(END, 1)

        assert flags_of(copy) == [COMMIT]


async def test_a_check_by_another_broker_while_one_is_examined_is_examined_too() -> None:
    async with open_transactions(brokers=2) as env:
        env.cluster.faults.reset(RequestCode.SEND_MESSAGE_V2)
        tx = await env.commit(ORDER)
        committed_at = tx.sent.queue.broker_name
        copy, other = sorted(env.cluster.brokers, key=lambda each: each.name == committed_at)
        await env.producer.client.heartbeats.start(copy.address)
        reopen(other, tx.message_id)
        held = env.cluster.faults.hold(END)
        await other.check_transactions()
        await held.wait()  # the request that tells a broker from a proxy
        latest = env.producer._checks._latest
        await copy.check_transactions()
        await until(lambda: latest[tx.message_id].location.address == copy.address)
        held.release()
        await copy.wait_for(END, 1)

        assert flags_of(copy) == [ROLLBACK]
        assert len(env.visible) == 1


async def test_a_copy_at_another_broker_is_committed_while_no_commit_is_confirmed() -> None:
    """The broker with the message may be lost; 5.x slaves pass its half messages on to others."""
    config = ProducerConfig(send_timeout_seconds=1.0)  # the commit may be known not to be sent
    async with open_transactions(brokers=2, config=config) as env:
        ours, other = env.cluster.brokers
        for broker in (ours, other):
            await env.producer.client.heartbeats.start(broker.address)
        async with env.producer.transaction(
            ORDER, queue=MessageQueue("orders", ours.name, 0)
        ) as tx:
            [half] = ours.transactions.open
            other.transactions.store(real_message(half))  # as replicated to the new master
            await ours.stop()
        assert tx.result is not None
        assert not tx.result.confirmed
        await other.check_transactions()
        await other.wait_for(END, 1)

        assert env.flags() == [COMMIT]


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_new_master_of_the_broker_that_confirmed_gets_the_commit_again(
    version: str,
) -> None:
    async with open_transactions(version=version) as env:
        tx = await env.commit(ORDER)
        await env.broker.stop()
        env.broker.port = 0
        await env.broker.start()
        reopen(env.broker, tx.message_id)
        await env.producer.client.routes.refresh(["orders"])
        await env.producer.client.heartbeats.start(env.broker.address)

        assert await env.run_check(2) == [COMMIT, COMMIT]


async def test_a_restarted_broker_that_no_route_names_gets_the_commit_again() -> None:
    """Checks of 4.9 brokers do not contain their name."""
    async with open_transactions(version="4.9.7") as env:
        tx = await env.commit(ORDER)
        await env.broker.restart()
        reopen(env.broker, tx.message_id)
        await env.producer.client.heartbeats.start(env.broker.address)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(env.producer.client.routes, "broker_at", lambda _: None)

            assert await env.run_check(2) == [COMMIT, COMMIT]


async def test_a_broker_that_goes_away_while_it_is_examined_gets_the_commit_again(
    env: TransactionEnv,
) -> None:
    """The response of the examination comes over another connection than that of the commit."""
    tx = await env.commit(ORDER)
    reopen(env.broker, tx.message_id)
    env.broker.faults.refuse("end_transaction", ResponseCode.GO_AWAY, "going away")

    assert await env.run_check(4) == [COMMIT, ROLLBACK, ROLLBACK, COMMIT]


async def test_a_broker_whose_connection_is_lost_with_its_check_gets_the_commit_again(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have its address now; a rollback would lose the message there."""
    first = await env.commit(ORDER)
    reopen(env.broker, first.message_id)
    assert await env.run_check(3) == [COMMIT, ROLLBACK, ROLLBACK]  # the peer is a broker
    second = await env.commit(ORDER)
    reopen(env.broker, second.message_id)
    receive = env.producer._checks.receive

    def receive_last(address: str, header: CheckTransactionState, message: MessageExt) -> None:
        receive(address, header, message)
        env.producer.client.remoting.drop(address, "cut")

    monkeypatch.setattr(env.producer._checks, "receive", receive_last)

    assert (await env.run_check(5))[3:] == [COMMIT, COMMIT]


async def test_a_rejected_commit_is_repeated_by_the_next_check(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "RECORD_SECONDS", 60.0)
    env.broker.faults.refuse("end_transaction", 1, "the store is not available")
    await env.commit(ORDER)

    assert await env.run_check(2) == [COMMIT, COMMIT]


async def test_a_restarted_broker_gets_the_decision_again(env: TransactionEnv) -> None:
    tx = await env.commit(ORDER)
    await env.broker.restart()
    reopen(env.broker, tx.message_id)
    await env.producer.client.heartbeats.start(env.broker.address)

    assert await env.run_check(2) == [COMMIT, COMMIT]
    assert env.check.calls == []


async def test_check_is_not_called_again_after_a_decision(env: TransactionEnv) -> None:
    (message_id,) = await leave_open(env)
    env.check.result = TransactionState.ROLLBACK
    await env.run_check(1)
    reopen(env.broker, message_id)

    assert await env.run_check(2) == [ROLLBACK, ROLLBACK]
    assert len(env.check.calls) == 1


async def test_another_member_of_the_group_replies_to_the_check(env: TransactionEnv) -> None:
    await leave_open(env)
    await env.producer.close()
    await until(lambda: not env.broker.connections)

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(
        "till", check=check, namesrv=env.cluster.namesrv, topics=["orders"]
    ):
        # It has sent nothing, and is known to the broker all the same.
        assert await env.run_check(1) == [COMMIT]


# --- many of them --------------------------------------------------------------------------------


async def test_check_concurrency_limits_concurrent_checks() -> None:
    running, most, gate = 0, 0, asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return TransactionState.COMMIT

    async with open_transactions(check=check, check_concurrency=3) as env:
        await leave_open(env, 10)
        await env.broker.check_transactions()
        await until(lambda: running == 3)
        gate.set()
        await env.broker.wait_for(END, 10)

        assert (most, env.flags()) == (3, [COMMIT] * 10)


async def test_a_reply_that_a_broker_does_not_confirm_delays_no_other_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_checks, "REPLY_SECONDS", 60.0)
    asked: list[bytes] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    async with open_transactions(check=check, check_concurrency=1) as env:
        await leave_open(env, 3)
        held = env.broker.faults.hold(END, executed=False, times=3)
        await env.broker.check_transactions()

        await held.wait(3)
        assert len(asked) == 3
        held.release()


async def test_a_repeated_check_gets_the_state_of_the_running_one() -> None:
    check = HeldCheck()
    async with open_transactions(check=check) as env:
        await leave_open(env)
        await env.broker.check_transactions()
        await until(lambda: check.asked)
        await env.broker.check_transactions()
        # Whatever else the client does with that broker comes after the second check.
        await env.producer.send(ORDER)
        check.release()
        await env.broker.wait_for(END, 1)
        await until(lambda: not env.open)

        assert (len(check.asked), env.flags(), len(env.visible)) == (1, [COMMIT], 2)
        assert env.producer._checks._held_bytes == 0


async def test_the_checks_of_a_thousand_transactions_are_not_dropped() -> None:
    """A broker checks all of a dead producer at once, and discards each after its 15th check."""
    count, check = 1200, HeldCheck()
    async with open_transactions(check=check) as env:
        checks, requests = env.producer._checks, env.producer.client.remoting.server
        await leave_open(env, count)
        await env.broker.check_transactions()
        await until(lambda: checks.dropped + requests.dropped + len(checks._latest) == count)

        assert (checks.dropped, requests.dropped) == (0, 0)
        check.release()


async def test_a_limited_number_of_tasks_works_off_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_RUNNING", 2)
    check = HeldCheck()
    async with open_transactions(check=check) as env:
        await leave_open(env, 5)
        await env.broker.check_transactions()
        await until(lambda: len(env.producer._checks._latest) == 5)

        assert env.producer._checks._workers == 2
        check.release()
        await env.broker.wait_for(END, 5)


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_WAITING", 2), ("MAX_HELD_BYTES", 2 * len(ORDER.body))]
)
async def test_checks_beyond_the_limit_are_dropped(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(transaction_checks, limit, value)
    check = HeldCheck()
    async with open_transactions(check=check, check_concurrency=1) as env:
        await leave_open(env, 3)
        await env.broker.check_transactions()
        await until(lambda: env.producer._checks.dropped == 1)
        check.release()
        await env.broker.wait_for(END, 2)

        assert await env.run_check(3) == [COMMIT] * 3  # there is room again
        assert env.open == []


@pytest.mark.parametrize("running", [1, 2])
async def test_close_drops_waiting_checks(running: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for their call, and those that wait for a task."""
    monkeypatch.setattr(transaction_checks, "MAX_RUNNING", running)
    check = HeldCheck()
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
    ):
        producer = TransactionProducer("till", check=check, client=client, check_concurrency=1)
        async with producer:
            for _ in range(2):
                async with producer.transaction(ORDER) as tx:
                    tx.unknown()
            await cluster.broker.check_transactions()
            await until(lambda: check.asked)
            await producer.send(ORDER)
        check.release()
        await cluster.broker.wait_for(END, 1)
        await until(lambda: not producer._checks._workers)
        await settle()
        async with Producer("till", client=client) as other:
            await other.send(ORDER)

        assert (len(check.asked), len(cluster.broker.requests_of(END))) == (1, 1)


async def test_a_group_without_a_transaction_producer_ignores_checks(env: TransactionEnv) -> None:
    await leave_open(env)
    await env.producer.close()
    async with Producer("till", namesrv=env.cluster.namesrv) as plain:
        await plain.send(ORDER)
        await plain.client.heartbeats.send_all()
        await env.broker.check_transactions()
        await plain.send(ORDER)

    assert env.flags() == []


async def test_checks_reach_the_producer_of_their_group() -> None:
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
        assert await cluster.broker.check_transactions() == 2
        await cluster.broker.wait_for(END, 2)

    assert sorted(groups) == [("first", "first"), ("second", "second")]


# --- what hooks see ------------------------------------------------------------------------------


class Decided:
    """Notes how transactions end."""

    def __init__(self) -> None:
        self.seen: list[EndTransactionContext] = []

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.seen.append(context)


async def test_hooks_get_the_decision_after_an_early_check() -> None:
    hook = Decided()
    async with open_transactions(hooks=(hook,)) as env, env.producer.transaction(ORDER):
        await env.run_check(1)

    assert [(each.state, each.from_check) for each in hook.seen] == [
        (TransactionState.UNKNOWN, True),
        (TransactionState.COMMIT, False),
    ]
    assert hook.seen[1].message.body == ORDER.body


async def test_hooks_run_once_for_a_commit_with_a_discarded_copy() -> None:
    hook = Decided()
    async with open_transactions(hooks=(hook,)) as env:
        tx = await env.commit(ORDER)
        reopen(env.broker, tx.message_id)
        await env.run_check(3)

    assert [each.state for each in hook.seen] == [TransactionState.COMMIT]


async def test_hooks_get_the_cancellation_of_a_decision() -> None:
    hook = Decided()
    async with open_transactions(hooks=(hook,)) as env:
        env.broker.faults.drop(END, executed=False)
        committing = asyncio.create_task(env.commit(ORDER))
        await env.broker.wait_for(END, 1)
        committing.cancel()
        await asyncio.wait([committing])

    (context,) = hook.seen
    assert context.state is TransactionState.COMMIT
    assert isinstance(context.error, asyncio.CancelledError)


async def test_logged_decisions_keep_no_messages() -> None:
    class Order(Message):
        """Can be watched by a weak reference."""

    class Deaf:
        def end_transaction(self, context: EndTransactionContext) -> None: ...

    alive = weakref.WeakSet[Message]()

    def order() -> Message:
        message = Order("orders", b"paid")
        alive.add(message)
        return message

    async with open_transactions(hooks=(Deaf(),)) as env:
        async with env.producer.transaction(order()):
            await env.run_check(1)
        async with env.producer.transaction(order()) as tx:
            tx.unknown()
        del tx
        env.broker.faults.drop(RequestCode.SEND_MESSAGE_V2, executed=False)
        entering = asyncio.create_task(env.producer.transaction(order()).__aenter__())
        await env.broker.wait_for(RequestCode.SEND_MESSAGE_V2, 3)
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


def test_a_check_of_a_copy_does_not_change_the_location() -> None:
    there = half("a")
    location = there.location
    there.on_check(HalfMessageLocation("127.0.0.1:2", "broker-b", 5, 5))

    assert there.location is location
