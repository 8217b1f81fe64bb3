"""Transactions on a scripted cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from rocketmq_aio.config.client import ClientConfig, ClientSettings, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    CodecError,
    ConfigError,
    HalfMessageError,
    InvalidMessageError,
    NotRunningError,
    RouteNotFoundError,
    SendUnknownError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendStatus, TransactionState
from rocketmq_aio.producer.topic_publish_info import UNUSED_SECONDS, QueueSelector
from rocketmq_aio.producer.transaction import (
    end_transaction as end_transaction_module,
    producer as transactions_module,
    transaction as transaction_module,
)
from rocketmq_aio.producer.transaction.producer import Execute, TransactionProducer
from rocketmq_aio.producer.transaction.transaction import Transaction
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from tests.fakes.cluster import FakeCluster
from tests.unit.producer.transaction_env import (
    COMMIT,
    END,
    ROLLBACK,
    CheckRecorder,
    TransactionEnv,
    open_transactions,
)
from tests.unit.remoting.short_timeout import shorten_next_timeout
from tests.unit.remoting.until import until

SEND = RequestCode.SEND_MESSAGE_V2
HEART_BEAT = RequestCode.HEART_BEAT
ORDER = Message("orders", b"paid", tags="new", keys="42", properties={"color": "red"})
ANY_ENCODING: list[ClientSettings] = [
    {},
    {"header_encoding": "json"},
    {"credentials": Credentials(access_key="admin", secret_key="adminsecret")},
]


class LocalPartError(Exception):
    """Error of the local part of a transaction."""


# --- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("settings", ANY_ENCODING, ids=["binary", "json", "signed"])
async def test_the_end_of_the_block_commits(version: str, settings: ClientSettings) -> None:
    async with open_transactions(version=version, client=ClientConfig(**settings)) as env:
        async with env.producer.transaction(ORDER) as tx:
            assert (env.visible, len(env.open)) == ([], 1)

        assert (env.visible, env.open) == ([b"paid"], [])
        (stored,) = env.broker.messages("orders")
        assert stored.properties["UNIQ_KEY"] == tx.message_id == tx.transaction_id
        assert stored.properties.items() >= {"TAGS": "new", "KEYS": "42", "color": "red"}.items()
        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, True)
        assert (tx.result.error, tx.result.message_id) == (None, tx.message_id)


async def test_an_exception_rolls_back_and_is_raised(env: TransactionEnv) -> None:
    tx = env.producer.transaction(ORDER)
    with pytest.raises(LocalPartError):
        async with tx:
            raise LocalPartError

    assert (env.visible, env.open) == ([], [])
    assert tx.result is not None
    assert (tx.result.state, tx.result.confirmed) == (TransactionState.ROLLBACK, True)


async def test_a_cancelled_block_is_rolled_back(env: TransactionEnv) -> None:
    entered = asyncio.Event()

    async def wait_in_block() -> None:
        async with env.producer.transaction(ORDER):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_in_block())
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert (env.flags(), env.visible, env.open) == ([ROLLBACK], [], [])


async def test_a_block_that_an_anyio_scope_cancels_is_rolled_back(env: TransactionEnv) -> None:
    transaction = env.producer.transaction(ORDER)
    with anyio.CancelScope() as scope:
        async with transaction:
            scope.cancel()
            await anyio.sleep_forever()

    assert env.flags() == [ROLLBACK]
    assert transaction.result is not None
    assert transaction.result.confirmed


async def test_a_block_that_is_cancelled_while_it_commits_is_not_rolled_back(
    env: TransactionEnv,
) -> None:
    held = env.broker.faults.hold(END)

    async def commit() -> None:
        async with env.producer.transaction(ORDER) as tx:
            await tx.commit()

    committing = asyncio.create_task(commit())
    await held.wait(1)
    committing.cancel()
    await asyncio.wait([committing])
    held.release()

    assert committing.cancelled()
    assert env.flags() == [COMMIT]


async def test_a_block_can_commit_before_its_end(env: TransactionEnv) -> None:
    tx = env.producer.transaction(ORDER)
    with suppress(LocalPartError):
        async with tx:
            assert (await tx.commit()).confirmed
            assert env.visible == [b"paid"]
            assert await tx.commit() is tx.result
            raise LocalPartError

    assert env.flags() == [COMMIT]


async def test_a_block_can_roll_back_without_an_exception(env: TransactionEnv) -> None:
    async with env.producer.transaction(ORDER) as tx:
        await tx.rollback()

    assert (env.flags(), env.visible, env.open) == ([ROLLBACK], [], [])


@pytest.mark.parametrize("raises", [False, True])
async def test_unknown_leaves_the_decision_to_the_check(raises: bool, env: TransactionEnv) -> None:
    tx = env.producer.transaction(ORDER)
    try:
        async with tx:
            tx.unknown()
            if raises:
                raise LocalPartError
    except LocalPartError:
        assert raises

    assert (env.flags(), len(env.open)) == ([], 1)
    assert tx.result is not None
    assert (tx.result.state, tx.result.confirmed) == (TransactionState.UNKNOWN, False)


async def test_a_second_decision_raises(env: TransactionEnv) -> None:
    async with env.producer.transaction(ORDER) as tx:
        await tx.rollback()
        with pytest.raises(ConfigError, match="decided already: ROLLBACK"):
            await tx.commit()
        with pytest.raises(ConfigError, match="decided already: ROLLBACK"):
            tx.unknown()
    async with env.producer.transaction(ORDER) as open_one:
        open_one.unknown()
        with pytest.raises(ConfigError, match="decided already: UNKNOWN"):
            await open_one.commit()

    assert env.flags() == [ROLLBACK]


async def test_a_transaction_is_entered_once(env: TransactionEnv) -> None:
    tx = env.producer.transaction(ORDER)
    for use in (lambda: tx.message_id, lambda: tx.sent, tx.unknown):
        with pytest.raises(NotRunningError, match="async with"):
            use()
    async with tx:
        pass
    with pytest.raises(NotRunningError, match="once"):
        await tx.__aenter__()

    assert env.flags() == [COMMIT]


# --- requests to the broker ----------------------------------------------------------------------


async def test_end_transaction_has_the_offsets_of_the_half_message() -> None:
    async with open_transactions(version="4.9.7") as env:
        await env.commit(ORDER)
        async with env.producer.transaction(ORDER) as tx:
            (half,) = env.open

        last = env.ends()[-1]
        assert (last.commit_log_offset, last.tran_state_table_offset) == (half.log_offset, 1)
        assert (last.msg_id, last.transaction_id) == (tx.message_id, tx.message_id)
        assert (last.producer_group, last.topic, last.broker_name) == ("till", "orders", "broker-a")
        assert last.from_transaction_check is False


async def test_a_namespace_applies_to_topic_and_group() -> None:
    async with open_transactions(client=ClientConfig(namespace="shop")) as env:
        env.cluster.create_topic("shop%orders")
        await env.commit(ORDER)

        assert [each.producer_group for each in env.ends()] == ["shop%till"]
        assert [each.body for each in env.broker.messages("shop%orders")] == [b"paid"]


async def test_a_heartbeat_precedes_the_half_message(env: TransactionEnv) -> None:
    await env.commit(ORDER)

    codes = [frame.command.code for frame in env.broker.requests]
    first_half = codes.index(SEND)
    beats = [c for c in env.broker.requests[:first_half] if c.command.code == HEART_BEAT]
    reported = [read_body(each.command.body, HeartbeatData).producer_data_set for each in beats]
    assert [each.group_name for each in reported[0]] == ["till"]


async def test_a_new_connection_gets_a_heartbeat_before_the_half_message(
    env: TransactionEnv,
) -> None:
    await env.commit(ORDER)
    await env.broker.restart()
    await until(lambda: not env.producer.client.remoting.is_connected(env.broker.address))
    held = env.broker.faults.hold("heartbeat", times=None)
    before = len(env.broker.requests_of(SEND))
    sending = asyncio.create_task(env.commit(ORDER, timeout_seconds=60))
    await held.wait(1)
    assert len(env.broker.requests_of(SEND)) == before
    held.remove()
    held.release()
    await sending

    assert env.visible == [b"paid", b"paid"]


# --- the local part does not run -----------------------------------------------------------------


async def _never_entered(
    env: TransactionEnv, error: type[Exception], timeout_seconds: float | None = None
) -> None:
    with pytest.raises(error):
        async with env.producer.transaction(ORDER, timeout_seconds=timeout_seconds):
            pytest.fail("the local part ran")


async def test_a_rejected_half_message_raises(env: TransactionEnv) -> None:
    env.broker.faults.refuse(SEND, 13, "too long")
    await _never_entered(env, BrokerError)

    assert env.flags() == []


async def test_a_half_message_of_unknown_outcome_is_rolled_back_by_its_check() -> None:
    async with open_transactions(config=ProducerConfig(retries=0)) as env:
        await env.commit(ORDER)
        held = env.broker.faults.hold(SEND, times=None)
        await _never_entered(env, SendUnknownError, timeout_seconds=0.2)
        held.release()

        assert len(env.open) == 1
        assert (await env.run_check(2), env.check.calls) == ([COMMIT, ROLLBACK], [])
        assert (env.visible, env.open) == ([b"paid"], [])


async def test_a_cancelled_half_message_is_rolled_back_by_its_check(env: TransactionEnv) -> None:
    held = env.broker.faults.hold(SEND, times=None)
    sending = asyncio.create_task(_never_entered(env, AssertionError))
    await held.wait(1)
    sending.cancel()
    await asyncio.wait([sending])
    held.remove()
    held.release()

    assert sending.cancelled()
    assert (await env.run_check(1), env.check.calls) == ([ROLLBACK], [])


async def test_a_half_message_without_a_readable_id_is_rolled_back_by_its_check(
    env: TransactionEnv,
) -> None:
    def unreadable(command: Command, connection: ServerConnection) -> Response:
        reply = env.broker.process(command, connection)
        assert isinstance(reply, Response)
        return Response(reply.code, {**reply.ext, "msgId": "not hexadecimal"})

    env.broker.faults.handle(SEND, unreadable)
    await _never_entered(env, CodecError)

    assert (await env.run_check(1), env.check.calls) == ([ROLLBACK], [])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_a_half_message_with_a_weaker_status_is_rolled_back(
    code: int, status: SendStatus, env: TransactionEnv
) -> None:

    def weaker(command: Command, connection: ServerConnection) -> Response:
        reply = env.broker.process(command, connection)
        assert isinstance(reply, Response)
        return Response(code, reply.ext)

    env.broker.faults.handle(SEND, weaker)
    with pytest.raises(HalfMessageError, match=status.name) as caught:
        async with env.producer.transaction(ORDER):
            pytest.fail("the local part ran")

    assert caught.value.result.status is status
    assert (env.flags(), env.open, env.visible) == ([ROLLBACK], [], [])


async def test_a_rollback_goes_to_the_broker_that_stored_with_a_weaker_status() -> None:
    async with open_transactions(brokers=2, config=ProducerConfig(retry_other_broker=True)) as env:
        env.cluster.faults.refuse(SEND, ResponseCode.FLUSH_DISK_TIMEOUT, executed=True)
        env.cluster.faults.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL)  # by the other broker
        await _never_entered(env, HalfMessageError)

        assert (env.flags(), env.open, env.visible) == ([ROLLBACK], [], [])


async def test_an_unknown_topic_raises_before_the_local_transaction() -> None:
    async with open_transactions(config=ProducerConfig(template_topic="none")) as env:
        with pytest.raises(RouteNotFoundError):
            async with env.producer.transaction(Message("absent", b"x")):
                pytest.fail("the local part ran")


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"x", delay_level=3),
        Message("orders", b"x", delay_seconds=1),
        Message("orders", b"x", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)),
        Message("orders", b"x", priority=1),
        Message("orders", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}),
        Message("orders", b"x", properties={"__LITE_TOPIC": "a"}),
        Message("%RETRY%group", b"x"),
        Message("orders", b"x", properties={"long": "x" * 32_200}),
        "no message",
    ],
    ids=["level", "delay", "time", "priority", "light", "lite", "retry", "properties", "type"],
)
async def test_messages_without_transaction_support_are_rejected(
    message: Message, env: TransactionEnv
) -> None:
    with pytest.raises(InvalidMessageError):
        async with env.producer.transaction(message):
            pytest.fail("the local part ran")

    assert env.broker.requests_of(SEND) == []


async def test_queue_and_selector_apply_to_the_half_message() -> None:
    last: QueueSelector = lambda queues, message: queues[-1]  # noqa: E731 - shortest
    async with open_transactions() as env:
        queues = await env.producer.publish_queues("orders")
        await env.commit(ORDER, queue=queues[2])
        await env.commit(ORDER, selector=last)
        with pytest.raises(ConfigError, match="selector"):
            async with env.producer.transaction(ORDER, queue=queues[0], selector=last):
                pytest.fail("the local part ran")

        counts = [len(env.broker.messages("orders", number)) for number in range(4)]
        assert counts == [0, 0, 1, 1]


async def test_a_sharding_key_selects_the_queue_of_the_half_message() -> None:
    keyed = Message("orders", b"paid", sharding_key="42")
    async with open_transactions() as env:
        sent = await env.producer.send(keyed)
        for _ in range(5):
            await env.commit(keyed)

        assert len(env.broker.messages("orders", sent.queue.queue_id)) == 6


# --- what is not confirmed -----------------------------------------------------------------------


async def test_the_decision_is_retried_at_a_busy_broker_with_pauses(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(end_transaction_module, "asyncio", SimpleNamespace(sleep=sleep))
    env.broker.faults.refuse("end_transaction", 2, "busy", times=2)
    tx = await env.commit(ORDER)

    assert len(pauses) == 2
    assert all(pauses)
    assert env.flags() == [COMMIT] * 3
    assert (env.visible, tx.result.confirmed) == ([b"paid"], True)  # type: ignore[union-attr]


async def test_the_decision_is_retried_while_the_broker_is_down() -> None:
    async with open_transactions(config=ProducerConfig(send_timeout_seconds=30)) as env:
        async with env.producer.transaction(ORDER) as tx:
            await env.broker.stop()
            await until(lambda: not env.producer.client.remoting.is_connected(env.broker.address))
            ending = asyncio.create_task(tx.commit())
            await until(lambda: env.producer.client.remoting.backoff_left(env.broker.address))
            await env.broker.start()
            result = await ending

        assert result.confirmed
        assert env.visible == [b"paid"]


async def test_a_commit_that_may_have_arrived_is_not_repeated(env: TransactionEnv) -> None:
    shorten_next_timeout(env.producer.client, END)
    held = env.broker.faults.hold("end_transaction", times=None)
    tx = await env.commit(ORDER)
    held.release()

    assert tx.result is not None
    assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, False)
    assert tx.result.error is not None
    assert (env.flags(), env.visible) == ([COMMIT], [b"paid"])


@pytest.mark.parametrize("state", [TransactionState.COMMIT, TransactionState.ROLLBACK])
async def test_a_rejected_decision_is_not_repeated_and_does_not_raise(
    state: TransactionState, env: TransactionEnv
) -> None:
    env.broker.faults.refuse("end_transaction", 1, "Find prepared transaction message failed")
    async with env.producer.transaction(ORDER) as tx:
        await tx.decide(state)

    assert tx.result is not None
    assert isinstance(tx.result.error, BrokerError)
    assert len(env.flags()) == 1


async def test_a_decision_that_a_former_master_rejects_has_the_route_fetched_again(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    invalid: list[str] = []
    monkeypatch.setattr(env.producer.client.routes, "invalidate", invalid.append)
    env.broker.faults.refuse("end_transaction", 2, "busy")
    await env.commit(ORDER)
    assert invalid == []
    env.broker.faults.refuse("end_transaction", 11, "a slave does not end transactions")
    tx = await env.commit(ORDER)

    assert invalid == ["orders"]
    assert tx.result is not None
    assert tx.result.confirmed


async def test_a_decision_goes_to_the_last_master_while_no_route_names_one(
    env: TransactionEnv,
) -> None:
    async with env.producer.transaction(ORDER) as tx:
        env.cluster.name_server.headless = {env.broker.name}
        await env.producer.client.routes.fetch("orders")

    assert tx.result is not None
    assert tx.result.confirmed


async def test_a_transaction_whose_commit_is_cancelled_is_over(env: TransactionEnv) -> None:
    env.broker.faults.drop(END, executed=False)
    committing = asyncio.create_task(env.commit(ORDER))
    await env.broker.wait_for(END, 1)
    committing.cancel()
    await asyncio.wait([committing])

    assert committing.cancelled()
    assert env.producer._log._in_progress == {}  # `close` does not wait for it


@pytest.mark.parametrize("rejected", [False, True])
async def test_only_decisions_without_confirmation_are_logged(
    rejected: bool, env: TransactionEnv, caplog: pytest.LogCaptureFixture
) -> None:
    if rejected:
        env.broker.faults.refuse("end_transaction", 1, "not found")
    await env.commit(ORDER)

    logged = [each for each in caplog.messages if "transaction_not_confirmed" in each]
    assert len(logged) == rejected


async def test_decisions_of_many_topics_keep_few_prepared_requests(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction_module, "MAX_TEMPLATES", 2)
    topics = ["orders", "t1", "t2", "orders"]
    for topic in topics[1:3]:
        env.cluster.create_topic(topic)
    ends = [await env.commit(Message(topic, b"paid")) for topic in topics]

    assert [tx.result is not None and tx.result.confirmed for tx in ends] == [True] * 4
    assert [len(env.broker.messages(topic)) for topic in topics] == [2, 1, 1, 2]
    assert len(env.producer._half_sender._end_transaction._templates) == 2


async def test_an_unconfirmed_decision_is_the_reply_to_the_check(env: TransactionEnv) -> None:
    shorten_next_timeout(env.producer.client, END)
    env.broker.faults.drop("end_transaction", executed=False)
    await env.commit(ORDER)
    assert (len(env.open), env.visible) == (1, [])

    assert await env.run_check(2) == [COMMIT, COMMIT]
    await until(lambda: env.visible == [b"paid"])
    assert (env.open, env.check.calls) == ([], [])


async def test_a_block_that_outlives_its_producer_sends_no_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions_module, "CLOSE_SECONDS", 0.01)
    async with open_transactions() as env:
        async with env.producer.transaction(ORDER) as tx:
            await env.producer.close()

        assert tx.result is not None
        assert (tx.result.state, tx.result.confirmed) == (TransactionState.COMMIT, False)
        assert tx.result.error is not None
        with pytest.raises(ClosedError):
            async with env.producer.transaction(ORDER):
                pytest.fail("the block may not run")
        assert len(env.open) == 1


# --- send_in_transaction -------------------------------------------------------------------------


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("kind", ["async", "plain", "plain that returns an awaitable"])
async def test_the_return_value_of_execute_is_the_decision(
    state: TransactionState, kind: str
) -> None:
    ids: list[str] = []

    def plain(tx: Transaction) -> TransactionState:
        ids.append(tx.message_id)
        return state

    async def execute(tx: Transaction) -> TransactionState:
        return plain(tx)

    def begin(tx: Transaction) -> Awaitable[TransactionState]:
        return execute(tx)

    async with open_transactions() as env:
        kinds: dict[str, Execute] = {"plain": plain, "async": partial(execute)}
        result = await env.producer.send_in_transaction(ORDER, kinds.get(kind, begin))

        assert (result.state, [result.message_id]) == (state, ids)
        assert env.visible == ([b"paid"] if state is TransactionState.COMMIT else [])
        assert len(env.open) == (state is TransactionState.UNKNOWN)


@pytest.mark.parametrize("answer", [None, "commit", True])
async def test_execute_without_a_state_leaves_it_to_the_check(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def forgetful(tx: Transaction) -> object:
        return answer

    async with open_transactions() as env:
        result = await env.producer.send_in_transaction(ORDER, forgetful)

        assert result.state is TransactionState.UNKNOWN
        assert f"forgetful': it returned {answer!r}, expected a TransactionState" in str(
            result.error
        )
        assert "local_transaction_without_state" in caplog.text
        assert "forgetful" in caplog.text


async def test_execute_may_return_an_object_of_any_kind(env: TransactionEnv) -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        def __repr__(self) -> str:
            raise ValueError("no text")

    result = await env.producer.send_in_transaction(ORDER, lambda tx: Hostile())

    assert result.state is TransactionState.UNKNOWN
    assert "it returned Hostile" in str(result.error)


async def test_an_invalid_execute_is_rejected_before_any_request(env: TransactionEnv) -> None:
    for execute in (lambda: None, TransactionState.COMMIT):
        with pytest.raises(ConfigError, match="execute="):
            await env.producer.send_in_transaction(ORDER, execute)  # type: ignore[arg-type]
    assert env.open == []
    with pytest.raises(ConfigError, match=r"called with \(message\)"):
        TransactionProducer("tills", check=lambda: TransactionState.COMMIT)  # type: ignore[arg-type,misc]


async def test_execute_may_call_commit(env: TransactionEnv) -> None:
    result = await env.producer.send_in_transaction(ORDER, lambda tx: tx.unknown())
    assert result.error is None

    async def commit(tx: Transaction) -> None:
        await tx.commit()

    committed = await env.producer.send_in_transaction(ORDER, commit)

    assert result.state is TransactionState.UNKNOWN
    assert committed.state is TransactionState.COMMIT


async def test_a_cancelled_execute_in_a_thread_is_left_to_the_check() -> None:
    began, may_end = threading.Event(), threading.Event()

    def execute(tx: Transaction) -> TransactionState:
        began.set()
        may_end.wait(10)
        return TransactionState.COMMIT

    async with open_transactions() as env:
        sending = asyncio.create_task(env.producer.send_in_transaction(ORDER, execute))
        await asyncio.to_thread(began.wait, 10)
        sending.cancel()
        await asyncio.wait([sending])
        may_end.set()

        assert sending.cancelled()
        assert (env.flags(), len(env.open)) == ([], 1)


async def test_execute_that_raises_a_cancellation_itself_is_rolled_back() -> None:
    def plain(tx: Transaction) -> TransactionState:
        raise asyncio.CancelledError

    async def coroutine(tx: Transaction) -> TransactionState:
        raise asyncio.CancelledError

    async with open_transactions() as env:
        with pytest.raises(RuntimeError, match="raised CancelledError"):
            await env.producer.send_in_transaction(ORDER, plain)
        with pytest.raises(asyncio.CancelledError):
            await env.producer.send_in_transaction(ORDER, coroutine)

        assert env.flags() == [ROLLBACK, ROLLBACK]


async def test_execute_that_is_cancelled_before_its_thread_is_rolled_back_and_never_runs() -> None:
    called, released = list[str](), threading.Event()
    submitted = asyncio.Event()

    class OneThread(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - any call
            submitted.set()
            return super().submit(*args, **kwargs)

    def execute(tx: Transaction) -> TransactionState:
        called.append(tx.message_id)
        return TransactionState.COMMIT

    async with open_transactions() as env:
        with OneThread(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            busy = pool.submit(released.wait, 15)
            submitted.clear()
            sending = asyncio.create_task(env.producer.send_in_transaction(ORDER, execute))
            await submitted.wait()
            sending.cancel()
            await asyncio.wait([sending])
            released.set()
            await asyncio.wrap_future(busy)
            await asyncio.to_thread(called.append, "later")

        assert called == ["later"]
        assert env.flags() == [ROLLBACK]


async def test_execute_without_a_thread_is_rolled_back_and_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def execute(tx: Transaction) -> TransactionState:
        called.append(tx.message_id)
        return TransactionState.COMMIT

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with open_transactions() as env:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await env.producer.send_in_transaction(ORDER, execute)
        await asyncio.to_thread(called.append, "later")  # threads can be started again

        assert called == ["later"]
        assert env.flags() == [ROLLBACK]


async def test_the_error_of_execute_is_raised() -> None:
    async def fail(tx: Transaction) -> TransactionState:
        raise LocalPartError

    async with open_transactions() as env:
        with pytest.raises(LocalPartError):
            await env.producer.send_in_transaction(ORDER, fail)

        assert env.flags() == [ROLLBACK]


# --- life ----------------------------------------------------------------------------------------


async def test_close_waits_for_transactions_in_progress(env: TransactionEnv) -> None:
    async with env.producer.transaction(ORDER) as tx:
        closing = asyncio.create_task(env.producer.close())
        await asyncio.sleep(0)
    await closing

    assert tx.result is not None
    assert tx.result.confirmed
    with pytest.raises(ClosedError):
        await env.commit(ORDER)
    assert env.visible == [b"paid"]


async def test_a_transaction_producer_sends_ordinary_messages(env: TransactionEnv) -> None:
    await env.producer.send(ORDER)

    assert (env.visible, env.flags()) == ([b"paid"], [])


async def test_topics_of_transactions_stay_registered(env: TransactionEnv) -> None:
    await env.commit(ORDER)
    env.producer._infos["orders"].used_at -= UNUSED_SECONDS + 1

    assert "orders" in env.producer.topics()


async def test_the_number_of_registered_topics_of_transactions_is_bounded(
    env: TransactionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_module, "MAX_TOPICS", 2)
    for topic in ("orders", "others", "orders", "more"):
        await env.commit(Message(topic, b"paid"))

    assert list(env.producer._half_sender.topics) == ["orders", "more"]  # the last ones sent to


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
def test_invalid_arguments_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TransactionProducer("till", **{"check": print, "namesrv": "127.0.0.1:1"} | wrong)  # type: ignore[arg-type]


async def test_an_invalid_timeout_is_rejected(env: TransactionEnv) -> None:
    with pytest.raises(ConfigError, match="timeout_seconds"):
        env.producer.transaction(ORDER, timeout_seconds=0)


async def test_a_close_that_runs_out_of_time_unregisters_the_producer() -> None:
    """The event loop stalled while the close waited for a transaction."""
    check = CheckRecorder()
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
    ):
        producer = TransactionProducer("shop", check=check, client=client)
        await producer.start()
        producer._close_seconds = 0.05
        async with producer.transaction(ORDER):
            await producer.close()

        async with TransactionProducer("shop", check=check, client=client):  # the group is free
            pass
