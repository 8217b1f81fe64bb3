"""Type checks of values: the codec of the config types `value`."""

# pyright: reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_type

import msgspec

from rocketmq_aio import (
    BatchContext,
    Codec,
    JSONCodec,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageHandler,
    MessageQueue,
    MsgpackCodec,
    PopConfig,
    PopConsumer,
    PoppedMessage,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    RawCodec,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.testing import received_message


class Order(msgspec.Struct):
    """An event."""

    id: int


class Refund(msgspec.Struct):
    """Another one."""

    order: int


class Reverse:
    """A codec of an application: it need not derive from anything."""

    def encode(self, value: str) -> bytes:
        """Encode *value*."""
        return value[::-1].encode()

    def decode(self, body: bytes) -> str:
        """Decode *body*."""
        return body.decode()[::-1]


# --- codecs --------------------------------------------------------------------------------------

assert_type(JSONCodec(Order), JSONCodec[Order])
assert_type(MsgpackCodec(Order).decode(b""), Order)
assert_type(JSONCodec(list[Order]).decode(b""), list[Order])
assert_type(JSONCodec().decode(b""), Any)
assert_type(RawCodec().decode(b""), bytes)
assert_type(JSONCodec(Order | Refund).decode(b""), Any)  # no type checker can name a union's type
either: Codec[Order | Refund] = JSONCodec(Order | Refund)
numbers: Codec[Sequence[int]] = MsgpackCodec(Sequence[int])
refunds = PushConfig(codec=JSONCodec(Refund))


# --- consumers -----------------------------------------------------------------------------------


async def handle(message: MessageExt[Order]) -> None:
    """Handle *message*."""
    assert_type(message.value, Order)
    _ = message.value.identity  # type: ignore[attr-defined]


async def handle_many(messages: list[MessageExt[Order]], context: BatchContext) -> None:
    """Handle *messages*."""
    _ = messages[0].value.identity  # type: ignore[attr-defined]


async def handle_any(message: MessageExt) -> None:
    """Handle a message of any type: a bare `MessageExt` needs no parameter."""
    _ = message.value.whatever


async def handle_object(message: MessageExt[object]) -> None:
    """Handle a message whose value is only printed."""
    _ = message.value


PushConsumer("g", on_message=handle, config=PushConfig(codec=JSONCodec(Order)))
PushConsumer("g", on_message=handle, config=PushConfig(codec=JSONCodec()))
PushConsumer("g", on_message=handle_object, config=PushConfig(codec=JSONCodec(Order)))
PushConsumer("g", on_message=handle_any, config=PushConfig(codec=JSONCodec(Order)))
PushConsumer("g", on_message=handle_any, config=PushConfig(concurrency=5))
PushConsumer("g", on_message=handle_any)
PushConsumer("g", on_batch=handle_many, config=PushConfig(codec=JSONCodec(Order)))
PushConsumer("g", on_message=handle, config=refunds)  # type: ignore[arg-type]

handler: MessageHandler[Order] = handle
any_handler: MessageHandler = handle_any
plain: PushConfig = PushConfig(concurrency=5)
typed = PushConfig(codec=JSONCodec(Order), concurrency=5)
assert_type(typed, PushConfig[Order])


async def consume(consumer: LitePullConsumer, popping: PopConsumer) -> None:
    """Use consumers of any type: bare names need no parameter."""
    for message in await consumer.poll():
        assert_type(message.value, Any)
    async for popped in popping:
        assert_type(popped.value, Any)


async def poll() -> None:
    """Poll and receive values."""
    consumer = LitePullConsumer("g", config=LitePullConfig(codec=JSONCodec(Order)))
    async with consumer:
        assert_type(await consumer.poll(), list[MessageExt[Order]])
        async for message in consumer:
            assert_type(message.value, Order)
    async with PopConsumer("g", config=PopConfig(codec=Reverse())) as popping:
        async for popped in popping:
            assert_type(popped, PoppedMessage[str])
            await popping.ack(popped)
        await consume(consumer, popping)
    untyped = LitePullConsumer("g")
    for each in await untyped.poll():
        _ = each.value.whatever
    async with LitePullConsumer("g", config=LitePullConfig(auto_commit=False)) as other:
        await consume(other, popping)


# --- producers -----------------------------------------------------------------------------------


async def send(anything: Producer) -> None:
    """Send values."""
    async with Producer("g", config=ProducerConfig(codec=JSONCodec(Order))) as producer:
        await producer.send_value("orders", Order(1), tags="new")
        await producer.send_value("orders", Refund(1))  # type: ignore[arg-type]
    await anything.send_value("orders", Refund(1))
    async with Producer("g", config=ProducerConfig(codec=either)) as producer_of_both:
        await producer_of_both.send_value("orders", Refund(1))
    async with Producer("g") as plain_producer:
        await plain_producer.send(Message("orders", b"1"))
        await send(plain_producer)


def check(message: MessageExt[Order]) -> TransactionState:
    """Return the state of a transaction."""
    return TransactionState.COMMIT if message.value.id else TransactionState.ROLLBACK


TransactionProducer("g", check=check, config=ProducerConfig(codec=JSONCodec(Order)))
TransactionProducer("g", check=check)


# --- received messages in tests of an application ------------------------------------------------

received = received_message(Message("orders", b"{}"))  # needs no annotation
assert_type(received, MessageExt[Any])
assert_type(received_message(Message("orders", b"{}"), codec=JSONCodec(Order)).value, Order)


# --- listeners -----------------------------------------------------------------------------------


async def on_queues(queues: Iterable[MessageQueue]) -> None:
    """Listen to an assignment."""


def on_topic(topic: str, queues: list[MessageQueue]) -> None:
    """Listen to the queues of a topic."""


PushConsumer("g", on_message=handle_any, on_assigned=on_queues, on_revoked=print)
PushConsumer("g", on_message=handle_any, on_assigned=on_topic)  # type: ignore[arg-type]
LitePullConsumer("g", on_revoked=on_topic)  # type: ignore[arg-type]


async def listen(consumer: LitePullConsumer) -> None:
    """Listen to the queues of a topic."""
    await consumer.listen_queues("orders", on_topic)
    await consumer.listen_queues("orders", on_queues)  # type: ignore[arg-type]
    await consumer.subscribe("orders", on_queues_changed=on_queues)  # type: ignore[arg-type]
