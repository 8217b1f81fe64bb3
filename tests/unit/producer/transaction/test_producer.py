"""Transactions from the half message to the decision, on a scripted cluster."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    ConfigError,
    HalfMessageError,
    InvalidMessageError,
    NotRunningError,
    RouteNotFoundError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendStatus, TransactionState
from rocketmq_aio.producer.topic_publish_info import QueueSelector
from rocketmq_aio.producer.transaction import producer as transactions_module
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.producer.transaction.transaction import Transaction
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from tests.fakes.connection import FakeConnection
from tests.fakes.script import Reply
from tests.unit.producer.transaction_env import COMMIT, END, ROLLBACK, Till, open_till
from tests.unit.remoting.hurry import hurry
from tests.unit.remoting.until import until

SEND = RequestCode.SEND_MESSAGE_V2
HEART_BEAT = RequestCode.HEART_BEAT
ORDER = Message("orders", b"paid", tags="new", keys="42", properties={"color": "red"})
ANY_ENCODING = [
    ClientConfig(),
    ClientConfig(header_encoding="json"),
    ClientConfig(credentials=Credentials(access_key="admin", secret_key="adminsecret")),
    ClientConfig(namespace="shop"),
]


class LocalPartError(Exception):
    """What the local part of a test fails with."""


# --- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("client", ANY_ENCODING[:3], ids=["binary", "json", "signed"])
async def test_a_message_is_seen_when_its_block_has_ended(
    version: str, client: ClientConfig
) -> None:
    async with open_till(version=version, client=client) as till:
        async with till.producer.transaction(ORDER) as tx:
            assert (till.visible, len(till.open)) == ([], 1)

        assert (till.visible, till.open) == ([b"paid"], [])
        (stored,) = till.broker.messages("orders")
        assert stored.properties["UNIQ_KEY"] == tx.message_id == tx.transaction_id
        assert stored.properties.items() >= {"TAGS": "new", "KEYS": "42", "color": "red"}.items()
        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, True)
        assert (tx.result.error, tx.result.message_id) == (None, tx.message_id)


async def test_an_exception_rolls_back_and_goes_on() -> None:
    async with open_till() as till:
        tx = till.producer.transaction(ORDER)
        with pytest.raises(LocalPartError):
            async with tx:
                raise LocalPartError

        assert (till.visible, till.open) == ([], [])
        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.ROLLBACK, True)


async def test_a_cancelled_block_is_rolled_back() -> None:
    async with open_till() as till:
        entered = asyncio.Event()

        async def wait_in_block() -> None:
            async with till.producer.transaction(ORDER):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(wait_in_block())
        await entered.wait()
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert (till.flags(), till.visible, till.open) == ([ROLLBACK], [], [])


async def test_a_block_can_commit_before_its_end() -> None:
    async with open_till() as till:
        tx = till.producer.transaction(ORDER)
        with suppress(LocalPartError):
            async with tx:
                assert (await tx.commit()).confirmed
                assert till.visible == [b"paid"]
                assert await tx.commit() is tx.result
                raise LocalPartError

        assert till.flags() == [COMMIT]


async def test_a_block_can_roll_back_without_an_exception() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            await tx.rollback()

        assert (till.flags(), till.visible, till.open) == ([ROLLBACK], [], [])


@pytest.mark.parametrize("raises", [False, True])
async def test_unknown_leaves_it_to_the_check(raises: bool) -> None:
    async with open_till() as till:
        tx = till.producer.transaction(ORDER)
        try:
            async with tx:
                tx.unknown()
                if raises:
                    raise LocalPartError
        except LocalPartError:
            assert raises

        assert (till.flags(), len(till.open)) == ([], 1)
        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.UNKNOWN, False)


async def test_there_is_one_decision() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            await tx.rollback()
            with pytest.raises(ConfigError, match="decided already: ROLLBACK"):
                await tx.commit()
            with pytest.raises(ConfigError, match="decided already: ROLLBACK"):
                tx.unknown()
        async with till.producer.transaction(ORDER) as open_one:
            open_one.unknown()
            with pytest.raises(ConfigError, match="decided already: UNKNOWN"):
                await open_one.commit()

        assert till.flags() == [ROLLBACK]


async def test_a_transaction_is_used_as_a_block_and_once() -> None:
    async with open_till() as till:
        tx = till.producer.transaction(ORDER)
        for use in (lambda: tx.message_id, lambda: tx.sent, tx.unknown):
            with pytest.raises(NotRunningError, match="async with"):
                use()
        async with tx:
            pass
        with pytest.raises(NotRunningError, match="once"):
            await tx.__aenter__()

        assert till.flags() == [COMMIT]


# --- what the broker is told ---------------------------------------------------------------------


async def test_the_decision_says_where_the_half_message_lies() -> None:
    async with open_till(version="4.9.7") as till:
        await _commit(till)
        async with till.producer.transaction(ORDER) as tx:
            (half,) = till.open

        last = till.ends()[-1]
        assert (last.commit_log_offset, last.tran_state_table_offset) == (half.log_offset, 1)
        assert (last.msg_id, last.transaction_id) == (tx.message_id, tx.message_id)
        assert (last.producer_group, last.topic, last.broker_name) == ("till", "orders", "broker-a")
        assert last.from_transaction_check is False


async def test_topic_and_group_of_a_namespace_belong_together() -> None:
    async with open_till(client=ANY_ENCODING[3]) as till:
        till.cluster.create_topic("shop%orders")
        async with till.producer.transaction(ORDER):
            pass

        assert [each.producer_group for each in till.ends()] == ["shop%till"]
        assert [each.body for each in till.broker.messages("shop%orders")] == [b"paid"]


async def test_the_broker_knows_the_group_before_the_half_message() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER):
            pass

        codes = [frame.command.code for frame in till.broker.requests]
        first_half = codes.index(SEND)
        beats = [c for c in till.broker.requests[:first_half] if c.command.code == HEART_BEAT]
        told = [read_body(each.command.body, HeartbeatData).producer_data_set for each in beats]
        assert [each.group_name for each in told[0]] == ["till"]


async def test_a_new_connection_is_introduced_before_the_next_half_message() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER):
            pass
        await till.broker.restart()
        await until(lambda: not till.producer.client.remoting.is_connected(till.broker.address))
        held = till.broker.hold(HEART_BEAT)
        before = len(till.broker.requests_of(SEND))
        sending = asyncio.create_task(_commit(till, timeout_seconds=60))
        await held.wait(1)
        assert len(till.broker.requests_of(SEND)) == before
        till.broker.off(HEART_BEAT)
        held.release()
        await sending

        assert till.visible == [b"paid", b"paid"]


async def _commit(till: Till, timeout_seconds: float | None = None) -> None:
    async with till.producer.transaction(ORDER, timeout_seconds=timeout_seconds):
        pass


# --- the local part does not run -----------------------------------------------------------------


async def _never_entered(
    till: Till, error: type[Exception], timeout_seconds: float | None = None
) -> None:
    with pytest.raises(error):
        async with till.producer.transaction(ORDER, timeout_seconds=timeout_seconds):
            pytest.fail("the local part ran")


async def test_a_refused_half_message_is_raised() -> None:
    async with open_till() as till:
        till.broker.on(SEND, Reply(13, remark="too long"))
        await _never_entered(till, BrokerError)

        assert till.flags() == []


async def test_a_half_message_that_may_be_stored_is_rolled_back_when_asked_for() -> None:
    async with open_till(config=ProducerConfig(retries=0)) as till:
        await _commit(till)
        held = till.broker.hold(SEND)
        await _never_entered(till, SendUnknownError, timeout_seconds=0.2)
        held.release()

        assert len(till.open) == 1
        assert (await till.ask(2), till.ledger.asked) == ([COMMIT, ROLLBACK], [])
        assert (till.visible, till.open) == ([b"paid"], [])


async def test_a_half_message_whose_caller_is_cancelled_is_rolled_back_when_asked_for() -> None:
    async with open_till() as till:
        held = till.broker.hold(SEND)
        sending = asyncio.create_task(_never_entered(till, AssertionError))
        await held.wait(1)
        sending.cancel()
        await asyncio.wait([sending])
        till.broker.off(SEND)
        held.release()

        assert sending.cancelled()
        assert (await till.ask(1), till.ledger.asked) == ([ROLLBACK], [])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_a_half_message_that_is_not_safe_is_taken_back(code: int, status: SendStatus) -> None:
    async with open_till() as till:

        def weaker(command: Command, connection: FakeConnection) -> Reply:
            reply = till.broker.answer(command, connection)
            assert isinstance(reply, Reply)
            return Reply(code, reply.ext)

        till.broker.on(SEND, weaker)
        with pytest.raises(HalfMessageError, match=status.name) as caught:
            async with till.producer.transaction(ORDER):
                pytest.fail("the local part ran")

        assert caught.value.result.status is status
        assert (till.flags(), till.open, till.visible) == ([ROLLBACK], [], [])


async def test_a_topic_that_is_not_there_is_told_before_the_local_part() -> None:
    async with open_till(config=ProducerConfig(template_topic="none")) as till:
        with pytest.raises(RouteNotFoundError):
            async with till.producer.transaction(Message("absent", b"x")):
                pytest.fail("the local part ran")


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"x", delay_level=3),
        Message("orders", b"x", delay_seconds=1),
        Message("orders", b"x", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)),
        Message("%RETRY%group", b"x"),
        Message("orders", b"x", properties={"long": "x" * 32_200}),
        "no message",
    ],
    ids=["level", "delay", "time", "retry topic", "properties", "type"],
)
async def test_messages_that_cannot_be_in_a_transaction_are_refused(message: Message) -> None:
    async with open_till() as till:
        with pytest.raises(InvalidMessageError):
            async with till.producer.transaction(message):
                pytest.fail("the local part ran")

        assert till.broker.requests_of(SEND) == []


async def test_queue_and_selector_are_kept() -> None:
    last: QueueSelector = lambda queues, message: queues[-1]  # noqa: E731 - shortest
    async with open_till() as till:
        queues = await till.producer.publish_queues("orders")
        async with till.producer.transaction(ORDER, queue=queues[2]):
            pass
        async with till.producer.transaction(ORDER, selector=last):
            pass
        with pytest.raises(ConfigError, match="selector"):
            async with till.producer.transaction(ORDER, queue=queues[0], selector=last):
                pytest.fail("the local part ran")

        counts = [len(till.broker.messages("orders", number)) for number in range(4)]
        assert counts == [0, 0, 1, 1]


async def test_a_sharding_key_chooses_the_queue_of_its_other_messages() -> None:
    keyed = Message("orders", b"paid", sharding_key="42")
    async with open_till() as till:
        sent = await till.producer.send(keyed)
        for _ in range(5):
            async with till.producer.transaction(keyed):
                pass

        assert len(till.broker.messages("orders", sent.queue.queue_id)) == 6


# --- what is not confirmed -----------------------------------------------------------------------


async def test_a_busy_broker_is_told_again() -> None:
    async with open_till() as till:
        till.broker.on(END, Reply(2, remark="busy"), times=2)
        async with till.producer.transaction(ORDER) as tx:
            pass

        assert till.flags() == [COMMIT] * 3
        assert (till.visible, tx.result.confirmed) == ([b"paid"], True)  # type: ignore[union-attr]


async def test_a_decision_waits_for_its_broker_to_come_back() -> None:
    async with open_till(config=ProducerConfig(send_timeout_seconds=30)) as till:
        async with till.producer.transaction(ORDER) as tx:
            await till.broker.stop()
            await until(lambda: not till.producer.client.remoting.is_connected(till.broker.address))
            ending = asyncio.create_task(tx.commit())
            await until(lambda: till.producer.client.remoting.backoff_left(till.broker.address))
            await till.broker.start()
            result = await ending

        assert result.confirmed
        assert till.visible == [b"paid"]


async def test_a_commit_that_may_have_arrived_is_not_sent_twice() -> None:
    async with open_till() as till:
        hurry(till.producer.client, END)
        held = till.broker.hold(END)
        async with till.producer.transaction(ORDER) as tx:
            pass
        held.release()

        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, False)
        assert tx.result.error is not None
        assert (till.flags(), till.visible) == ([COMMIT], [b"paid"])


async def test_a_refused_decision_is_no_error_of_the_local_part() -> None:
    async with open_till() as till:
        till.broker.on(END, Reply(1, remark="Find prepared transaction message failed"))
        async with till.producer.transaction(ORDER) as tx:
            pass

        assert tx.result is not None
        assert isinstance(tx.result.error, BrokerError)
        assert till.flags() == [COMMIT]


async def test_what_the_broker_did_not_hear_is_answered_to_its_check() -> None:
    async with open_till() as till:
        hurry(till.producer.client, END)
        till.broker.on(END, None)
        async with till.producer.transaction(ORDER):
            pass
        assert (len(till.open), till.visible) == (1, [])

        assert await till.ask(2) == [COMMIT, COMMIT]
        await until(lambda: till.visible == [b"paid"])
        assert (till.open, till.ledger.asked) == ([], [])


async def test_a_block_that_outlives_its_producer_decides_and_tells_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions_module, "CLOSE_SECONDS", 0.01)
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            await till.producer.close()

        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, False)
        assert tx.result.error is not None
        with pytest.raises(ClosedError):
            async with till.producer.transaction(ORDER):
                pytest.fail("the block may not run")
        assert len(till.open) == 1


# --- send_in_transaction -------------------------------------------------------------------------


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_local_part_says_how_it_ended(state: TransactionState, kind: str) -> None:
    ids: list[str] = []

    def plain(tx: Transaction) -> TransactionState:
        ids.append(tx.message_id)
        return state

    async def execute(tx: Transaction) -> TransactionState:
        return plain(tx)

    async with open_till() as till:
        chosen = plain if kind == "plain" else partial(execute)
        result = await till.producer.send_in_transaction(ORDER, chosen)

        assert (result.state, [result.message_id]) == (state, ids)
        assert till.visible == ([b"paid"] if state is TransactionState.COMMIT else [])
        assert len(till.open) == (state is TransactionState.UNKNOWN)


@pytest.mark.parametrize("answer", [None, "commit", True])
async def test_a_local_part_that_says_no_state_is_left_to_the_check_and_told(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def forgetful(tx: Transaction) -> object:
        return answer

    async with open_till() as till:
        result = await till.producer.send_in_transaction(ORDER, forgetful)

        assert result.state is TransactionState.UNKNOWN
        assert f"forgetful': it returned {answer!r}, expected a TransactionState" in str(
            result.error
        )
        assert "local_part_gave_no_state" in caplog.text
        assert "forgetful" in caplog.text


async def test_a_local_part_that_cannot_be_called_is_refused_before_anything_is_sent() -> None:
    async with open_till() as till:
        for execute in (lambda: None, TransactionState.COMMIT):
            with pytest.raises(ConfigError, match="execute="):
                await till.producer.send_in_transaction(ORDER, execute)  # type: ignore[arg-type]
        assert till.open == []
        with pytest.raises(ConfigError, match=r"called with \(message\)"):
            TransactionProducer("tills", check=lambda: TransactionState.COMMIT)  # type: ignore[arg-type,misc]


async def test_a_local_part_may_decide_by_itself() -> None:
    async with open_till() as till:
        result = await till.producer.send_in_transaction(ORDER, lambda tx: tx.unknown())
        assert result.error is None

        async def commit(tx: Transaction) -> None:
            await tx.commit()

        committed = await till.producer.send_in_transaction(ORDER, commit)

        assert result.state is TransactionState.UNKNOWN
        assert committed.state is TransactionState.COMMIT


async def test_a_thread_whose_caller_is_cancelled_is_left_to_the_check() -> None:
    began, may_end = threading.Event(), threading.Event()

    def execute(tx: Transaction) -> TransactionState:
        began.set()
        may_end.wait(10)
        return TransactionState.COMMIT

    async with open_till() as till:
        sending = asyncio.create_task(till.producer.send_in_transaction(ORDER, execute))
        await asyncio.to_thread(began.wait, 10)
        sending.cancel()
        await asyncio.wait([sending])
        may_end.set()

        assert sending.cancelled()
        assert (till.flags(), len(till.open)) == ([], 1)


async def test_a_local_part_that_found_no_thread_is_not_run_after_its_rollback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def execute(tx: Transaction) -> TransactionState:
        called.append(tx.message_id)
        return TransactionState.COMMIT

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with open_till() as till:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await till.producer.send_in_transaction(ORDER, execute)
        await asyncio.to_thread(called.append, "later")  # threads can be started again

        assert called == ["later"]
        assert till.flags() == [ROLLBACK]


async def test_what_the_local_part_raises_is_raised() -> None:
    async def fail(tx: Transaction) -> TransactionState:
        raise LocalPartError

    async with open_till() as till:
        with pytest.raises(LocalPartError):
            await till.producer.send_in_transaction(ORDER, fail)

        assert till.flags() == [ROLLBACK]


# --- life ----------------------------------------------------------------------------------------


async def test_a_close_waits_for_transactions_under_way() -> None:
    async with open_till() as till:
        async with till.producer.transaction(ORDER) as tx:
            closing = asyncio.create_task(till.producer.close())
            await asyncio.sleep(0)
        await closing

        assert tx.result is not None
        assert tx.result.confirmed
        with pytest.raises(ClosedError):
            await _commit(till)
        assert till.visible == [b"paid"]


async def test_it_sends_ordinary_messages_too() -> None:
    async with open_till() as till:
        await till.producer.send(ORDER)

        assert (till.visible, till.flags()) == ([b"paid"], [])


async def test_topics_with_transactions_stay_known() -> None:
    async with open_till() as till:
        await _commit(till)
        till.producer.on_route_changed("orders")

        assert "orders" in till.producer.topics()


@pytest.mark.parametrize(
    "wrong",
    [
        {"check": None},
        {"check_concurrency": 0},
        {"check_concurrency": True},
        {"topics": "orders"},
        {"topics": ["a b"]},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TransactionProducer("till", **{"check": print, "namesrv": "127.0.0.1:1"} | wrong)  # type: ignore[arg-type]


async def test_a_wrong_timeout_is_refused() -> None:
    async with open_till() as till:
        with pytest.raises(ConfigError, match="timeout_seconds"):
            till.producer.transaction(ORDER, timeout_seconds=0)
