"""Send hooks and end-transaction hooks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    BatchError,
    BrokerError,
    ConfigError,
    InvalidMessageError,
    ReplyTimeoutError,
    SendError,
)
from rocketmq_aio.hooks import MAX_WITH_ADDED, EndTransactionContext, SendContext
from rocketmq_aio.instance.hook_runner import AnySendHook
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus, TransactionState
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.unit.producer.producer_env import ORDER, SEND
from tests.unit.remoting.until import until

TIMED = Message("orders", b"later", delay_seconds=30)
STORED = SendResult(SendStatus.SEND_OK, "id", "stored", MessageQueue("orders", "broker-a", 0), 7)
KEYED = Message("orders", b"hello", sharding_key="ann")


def refuse(*_: object) -> Response:
    return Response(ResponseCode.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]")


class Recorder:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[SendContext] = []
        self.decided: list[EndTransactionContext] = []

    def before_send(self, context: SendContext) -> None:
        self.begun.append(context.mode)
        context.notes[str(id(self))] = "mine"

    def after_send(self, context: SendContext) -> None:
        assert context.notes[str(id(self))] == "mine"
        self.ended.append(context)

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.decided.append(context)

    @property
    def last(self) -> SendContext:
        return self.ended[-1]


class Failing(Recorder):
    """Fails whatever it is told."""

    def before_send(self, context: SendContext) -> None:
        super().before_send(context)
        raise ValueError("before")

    def after_send(self, context: SendContext) -> None:
        super().after_send(context)
        raise KeyError("after")

    def end_transaction(self, context: EndTransactionContext) -> None:
        super().end_transaction(context)
        raise LookupError("end")


class Signing:
    """Adds a property to every message."""

    def before_send(self, context: SendContext) -> None:
        for place in range(len(context.messages)):
            context.add_properties({"signed": f"by-{place}"}, place)

    def after_send(self, context: SendContext) -> None: ...


class Forbidding:
    """Forbids messages of one color."""

    def check_forbidden(self, context: SendContext) -> None:
        if any(each.properties.get("color") == "red" for each in context.messages):
            raise PermissionError("nothing red")


@asynccontextmanager
async def shop(
    *hooks: AnySendHook, config: ProducerConfig | None = None
) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        Producer("shop", namesrv=cluster.namesrv, hooks=hooks, config=config) as producer,
    ):
        yield cluster, producer


async def by_nowait(producer: Producer, message: Message) -> object:
    return await producer.send_nowait(message)


WAYS: dict[str, Callable[[Producer, Message], Awaitable[Any]]] = {
    "send": Producer.send,
    "send_nowait": by_nowait,
    "send_oneway": Producer.send_oneway,
    "send_batch": lambda producer, message: producer.send_batch([message]),
}


# --- which hooks run ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [way for way in WAYS if way != "send_oneway"])
@pytest.mark.parametrize("config", [None, ProducerConfig(auto_batch=AutoBatch())], ids=["", "auto"])
async def test_hooks_run_once_for_every_method(mode: str, config: ProducerConfig | None) -> None:
    hook = Recorder()
    async with shop(hook, config=config) as (_, producer):
        said = await WAYS[mode](producer, ORDER)
        result = said[0] if isinstance(said, list) else said

    assert hook.begun == [mode]
    (context,) = hook.ended
    assert (context.group, context.mode, context.messages) == ("shop", mode, (ORDER,))
    assert context.result is result
    assert (context.error, context.queue) == (None, None)
    assert context.seconds is not None
    assert context.seconds > 0


async def test_a_oneway_send_has_no_outcome() -> None:
    hook = Recorder()
    async with shop(hook) as (_, producer):
        await producer.send_oneway(ORDER)

    assert (hook.begun, list(hook.last.outcomes), hook.last.error) == (["send_oneway"], [], None)
    assert hook.last.result is None


@pytest.mark.parametrize("message", [TIMED, KEYED], ids=["timed", "keyed"])
async def test_hooks_run_for_keyed_and_delayed_sends(message: Message) -> None:
    hook = Recorder()
    async with shop(hook, config=ProducerConfig(auto_batch=AutoBatch())) as (_, producer):
        result = await producer.send(message)

    assert hook.begun == ["send"]
    assert hook.last.result is result


async def test_before_send_has_the_chosen_queue() -> None:
    hook, queue = Recorder(), MessageQueue("orders", "broker-a", 2)
    async with shop(hook) as (_, producer):
        result = await producer.send(ORDER, queue=queue)

    assert hook.last.queue == queue == result.queue


async def test_hooks_run_once_per_batch() -> None:
    hook = Recorder()
    messages = [ORDER, Message("orders", b"second"), Message("orders", b"third")]
    async with shop(hook) as (_, producer):
        results = await producer.send_batch(messages)

    assert hook.begun == ["send_batch"]
    assert list(hook.last.messages) == messages
    assert list(hook.last.outcomes) == results


async def test_after_send_has_the_outcomes_of_a_partly_failed_batch() -> None:
    hook = Recorder()
    config = ProducerConfig(max_message_bytes=150, retries=0)
    async with shop(hook, config=config) as (cluster, producer):
        cluster.faults.handle(RequestCode.SEND_BATCH_MESSAGE, refuse)
        with pytest.raises(BatchError) as caught:
            await producer.send_batch([Message("orders", b"x" * 50) for _ in range(2)])

    assert hook.last.error is caught.value
    assert tuple(hook.last.outcomes) == caught.value.outcomes
    assert sum(isinstance(each, SendResult) for each in hook.last.outcomes) == 1


async def test_an_error_names_the_message_of_a_batch_that_a_hook_made_too_large() -> None:
    hook = Recorder()
    messages = [ORDER, Message("orders", b"x" * 100), ORDER]
    async with shop(Signing(), hook, config=ProducerConfig(max_message_bytes=185)) as (
        cluster,
        producer,
    ):
        with pytest.raises(InvalidMessageError, match=r"number 1 of the batch.* hooks.* is 185$"):
            await producer.send_batch(messages)

        assert cluster.brokers[0].requests_of(RequestCode.SEND_BATCH_MESSAGE) == []
    assert isinstance(hook.last.error, InvalidMessageError)


@pytest.mark.parametrize("mode", ["send", "send_nowait", "send_batch"])
async def test_after_send_has_the_error(mode: str) -> None:
    hook = Recorder()
    async with shop(hook, config=ProducerConfig(retries=0)) as (cluster, producer):
        code = RequestCode.SEND_BATCH_MESSAGE if mode == "send_batch" else SEND
        cluster.faults.handle(code, refuse)
        with pytest.raises((SendError, BrokerError)) as caught:
            await WAYS[mode](producer, ORDER)

    assert hook.last.error is caught.value
    assert hook.last.outcomes == (caught.value,)
    assert hook.last.result is None


@pytest.mark.parametrize("mode", ["send", "send_nowait"])
async def test_after_send_runs_for_a_cancelled_send(mode: str) -> None:
    hook = Recorder()
    async with shop(hook) as (cluster, producer):
        await producer.send(ORDER)
        held = cluster.faults.hold(SEND, executed=False)
        sending = asyncio.ensure_future(WAYS[mode](producer, ORDER))
        await held.wait(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        held.release()  # a send of `send_nowait` goes on until it has its response

    assert isinstance(hook.last.error, asyncio.CancelledError)


async def test_an_error_of_send_nowait_that_nobody_retrieves_is_logged_by_asyncio() -> None:
    logged: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context.get("exception")))
    async with shop(Recorder(), config=ProducerConfig(retries=0)) as (cluster, producer):
        cluster.faults.handle(SEND, refuse)
        sent = producer.send_nowait(ORDER)
        await asyncio.wait([sent])
        del sent
        gc.collect()
        await until(lambda: logged)

    assert [type(each) for each in logged] == [SendError]


@pytest.mark.parametrize("fails", [True, False])
async def test_after_send_runs_once_for_a_send_that_ends_while_it_is_cancelled(fails: bool) -> None:
    hook, failures = Recorder(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    sent: asyncio.Future[SendResult] = loop.create_future()
    hooks = SendHooks("shop", [hook])
    returned = hooks.around_future(hooks.context("send_nowait", None, ORDER), lambda: sent)
    if fails:
        sent.set_exception(SendError("orders", "-", []))
    else:
        sent.set_result(STORED)
    returned.cancel()
    await asyncio.wait([returned])

    assert [type(each.error) for each in hook.ended] == [asyncio.CancelledError]
    assert failures == []


async def test_hooks_run_once_for_a_retried_send() -> None:
    hook = Recorder()
    async with shop(hook) as (cluster, producer):
        cluster.faults.handle(SEND, refuse)
        await producer.send(ORDER)

    assert hook.begun == ["send"]
    assert hook.last.error is None


# --- what hooks may do ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(WAYS))
async def test_a_hook_adds_properties_to_a_copy_of_the_message(mode: str) -> None:
    message = Message("orders", b"hello", keys="42", properties={"color": "blue"})
    before = dict(message.properties), message.encoded_properties
    async with shop(Signing()) as (cluster, producer):
        await WAYS[mode](producer, message)
        code = RequestCode.SEND_BATCH_MESSAGE if mode == "send_batch" else SEND
        await cluster.broker.wait_for(code, 1)
        (stored,) = cluster.broker.messages("orders")

    assert stored.properties.items() >= {"signed": "by-0", "KEYS": "42", "color": "blue"}.items()
    assert (message.properties, message.encoded_properties) == before


async def test_a_hook_adds_properties_by_position_in_a_batch() -> None:
    async with shop(Signing()) as (cluster, producer):
        await producer.send_batch([ORDER, ORDER])
        stored = cluster.broker.messages("orders")

    assert [each.properties["signed"] for each in stored] == ["by-0", "by-1"]


def test_a_hook_replaces_a_property() -> None:
    message = Message("orders", b"hello", properties={"signed": "by-me"}, sharding_key="ann")
    context = SendContext(group="shop", mode="send", messages=(message,))
    context.add_properties({"signed": "by-you"})

    assert context.message.properties["signed"] == "by-you"
    assert context.message.encoded_properties.count("signed") == 1
    assert (context.message.sharding_key, context.message.body) == ("ann", b"hello")


def test_properties_of_a_batch_are_added_without_copying_it_each_time() -> None:
    given = (ORDER,) * 3
    context = SendContext(group="shop", mode="send_batch", messages=given)
    context.add_properties({"signed": "by-0"}, 0)
    messages = context.messages
    context.add_properties({"signed": "by-2"}, 2)

    assert context.messages is messages
    assert [each.properties.get("signed") for each in messages] == ["by-0", None, "by-2"]
    assert given == (ORDER,) * 3


@pytest.mark.parametrize("added", [{"UNIQ_KEY": "1"}, {"a": "b\x01c"}, {"a\x02": "b"}, {"a": ""}])
def test_a_hook_cannot_add_invalid_properties(added: dict[str, str]) -> None:
    context = SendContext(group="shop", mode="send", messages=(ORDER,))
    with pytest.raises(InvalidMessageError):
        context.add_properties(added)

    assert context.messages == (ORDER,)


@pytest.mark.parametrize("mode", list(WAYS))
async def test_a_message_is_sent_without_properties_of_a_hook_that_do_not_fit(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Filling(Signing):
        def before_send(self, context: SendContext) -> None:
            context.add_properties({"filler": "x" * MAX_WITH_ADDED})

    async with shop(Filling(), Signing()) as (cluster, producer):
        await WAYS[mode](producer, ORDER)
        code = RequestCode.SEND_BATCH_MESSAGE if mode == "send_batch" else SEND
        await cluster.broker.wait_for(code, 1)
        (stored,) = cluster.broker.messages("orders")

    assert stored.properties["signed"] == "by-0"
    assert "filler" not in stored.properties
    assert f"hooks may fill {MAX_WITH_ADDED}" in caplog.text


async def test_a_hook_may_fill_the_properties_of_a_half_message_and_of_a_request() -> None:
    class Filling(Signing):
        def before_send(self, context: SendContext) -> None:
            free = MAX_WITH_ADDED - len(context.message.encoded_properties) - len("filler##")
            with pytest.raises(InvalidMessageError):
                context.add_properties({"filler": "x" * (free + 1)})
            context.add_properties({"filler": "x" * free})

    group = "g" * 255
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        TransactionProducer(
            group,
            check=lambda _: TransactionState.UNKNOWN,
            namesrv=cluster.namesrv,
            hooks=[Filling()],
        ) as producer,
    ):
        async with producer.transaction(ORDER):
            pass
        with pytest.raises(ReplyTimeoutError):
            await producer.request(ORDER, timeout_seconds=0.5)
        stored = cluster.broker.messages("orders")

    assert [len(each.properties["filler"]) > MAX_WITH_ADDED - 100 for each in stored] == [True] * 2


@pytest.mark.parametrize("mode", list(WAYS))
async def test_check_forbidden_prevents_the_send(mode: str) -> None:
    hook = Recorder()
    red = Message("orders", b"no", properties={"color": "red"})
    async with shop(hook, Forbidding()) as (cluster, producer):
        with pytest.raises(PermissionError, match="nothing red"):
            await WAYS[mode](producer, red)
        await producer.send(ORDER)

        assert [each.body for each in cluster.broker.messages("orders")] == [ORDER.body]
        assert producer._in_flight.count == 0
    assert hook.begun == ["send"]


@pytest.mark.parametrize("mode", list(WAYS))
async def test_failing_hooks_are_logged_once_per_kind(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing, hook = Failing(), Recorder()
    async with shop(failing, hook) as (cluster, producer):
        for _ in range(3):
            await WAYS[mode](producer, ORDER)
        code = RequestCode.SEND_BATCH_MESSAGE if mode == "send_batch" else SEND
        await cluster.broker.wait_for(code, 3)

    assert hook.begun == [mode] * 3
    assert len(failing.ended) == len(hook.ended) == 3
    assert len([each for each in caplog.records if "hook_failed" in each.getMessage()]) == 2


class Waiting:
    async def before_send(self, context: SendContext) -> None: ...
    def after_send(self, context: SendContext) -> None: ...


@pytest.mark.parametrize("hooks", [5, [5], [Recorder], [print], [Waiting()]])
def test_an_invalid_hook_is_rejected(hooks: Sequence[object]) -> None:
    with pytest.raises(ConfigError) as caught:
        Producer("shop", namesrv="127.0.0.1:1", hooks=hooks)  # type: ignore[arg-type]

    assert caught.value.setting == "hooks"


# --- transactions --------------------------------------------------------------------------------


async def commit(message: object) -> TransactionState:
    return TransactionState.COMMIT


@asynccontextmanager
async def env(*hooks: AnySendHook) -> AsyncIterator[tuple[FakeCluster, TransactionProducer]]:
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        TransactionProducer("till", check=commit, namesrv=cluster.namesrv, hooks=hooks) as producer,
    ):
        yield cluster, producer


@pytest.mark.parametrize("state", list(TransactionState))
async def test_hooks_run_for_half_message_and_end_of_a_transaction(state: TransactionState) -> None:
    hook = Recorder()
    async with env(Failing(), hook, Signing()) as (cluster, producer):
        result = await producer.send_in_transaction(ORDER, lambda running: state)

    assert hook.begun == ["transaction"]
    assert hook.last.result is result.sent
    (end,) = hook.decided
    assert (end.group, end.state, end.from_check, end.error) == ("till", state, False, None)
    assert (end.message_id, end.address) == (result.message_id, cluster.broker.address)
    assert end.message.body == ORDER.body
    assert end.transaction_id


async def test_end_transaction_hook_has_the_error_of_an_unconfirmed_end() -> None:
    hook = Recorder()
    async with env(hook) as (cluster, producer):
        cluster.faults.refuse("end_transaction", 1, "no")
        result = await producer.send_in_transaction(ORDER, lambda _: TransactionState.COMMIT)

    (end,) = hook.decided
    assert end.error is result.error is not None


async def test_end_transaction_hook_runs_for_a_check() -> None:
    hook = Recorder()
    async with env(hook) as (cluster, producer):
        await producer.send_in_transaction(ORDER, lambda _: TransactionState.UNKNOWN)
        await cluster.broker.check_transactions()
        await cluster.broker.wait_for(RequestCode.END_TRANSACTION, 1)
        await until(lambda: len(hook.decided) == 2)

    left, answered = hook.decided
    assert (left.state, left.from_check) == (TransactionState.UNKNOWN, False)
    assert (answered.state, answered.from_check) == (TransactionState.COMMIT, True)
    assert answered.message_id == left.message_id
    assert answered.message.body == ORDER.body


async def test_a_hook_puts_no_half_message_into_a_light_message_queue() -> None:
    class Lighting(Signing):
        def before_send(self, context: SendContext) -> None:
            context.add_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"})

    async with env(Lighting()) as (cluster, producer):
        with pytest.raises(InvalidMessageError, match="before the transaction ends"):
            await producer.send_in_transaction(ORDER, lambda _: TransactionState.COMMIT)

        assert not cluster.broker.transactions.open


async def test_check_forbidden_prevents_a_transaction() -> None:
    ran = []
    async with env(Forbidding()) as (cluster, producer):
        with pytest.raises(PermissionError):
            async with producer.transaction(Message("orders", b"x", properties={"color": "red"})):
                ran.append(1)

        assert not cluster.broker.transactions.open
    assert not ran


async def test_hooks_run_for_requests_and_replies() -> None:
    hook = Recorder()
    async with shop(hook) as (_, producer):
        with pytest.raises(TimeoutError):
            await producer.request(ORDER, timeout_seconds=1.0)

    assert hook.begun == ["request"]
    assert hook.last.result is not None
