"""Sends that are more than a message on its way: in order, compressed, transactions, requests."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.subject.measure import Options, closed_loop
from rocketmq_aio import (
    AutoBatch,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)

GROUP: Final = "bench-kinds"
REQUEST_SECONDS: Final = 10.0
WORDS: Final = (
    "order customer paid shipped returned street number invoice amount currency total item"
    " discount warehouse parcel carrier tracking address city country"
).split(" ")


def text(size: int) -> bytes:
    """Return words, which shrink to about a fourth: the same that the Java subject sends."""
    words, length, state = [], 0, 1
    while length < size:
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        words.append(f"{WORDS[(state >> 16) % len(WORDS)]}{state % 1000} ")
        length += len(words[-1])
    return "".join(words)[:size].encode()


async def send_in_order_together(options: Options) -> None:
    """The same, with messages of one queue in one request."""
    await send_in_order(options, ProducerConfig(auto_batch=AutoBatch(linger_seconds=0)))


async def send_in_order(options: Options, config: ProducerConfig | None = None) -> None:
    """As many keys as may be in flight; a key's next message leaves after an answer."""
    topic, body = options.topic, options.body()
    keys = [f"key-{number}" for number in range(options.in_flight)]
    async with Producer(GROUP, namesrv=options.namesrv, config=config) as producer:

        async def send() -> None:
            key = keys.pop()
            try:
                await producer.send(Message(topic, body, tags="TagA"), sharding_key=key)
            finally:
                keys.append(key)

        await closed_loop(send, options)


async def send_text(options: Options) -> None:
    """Bodies that are compressed, as a producer does by default."""
    topic, body = options.topic, text(options.body_bytes)
    async with Producer(GROUP, namesrv=options.namesrv) as producer:

        async def send() -> object:
            return await producer.send(Message(topic, body, tags="TagA"))

        await closed_loop(send, options)


async def send_in_transactions(options: Options) -> None:
    """A half message, nothing done here, a commit that the broker has acknowledged."""
    topic, body = options.topic, options.body()

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(GROUP, check=check, namesrv=options.namesrv) as producer:

        async def send() -> None:
            async with producer.transaction(Message(topic, body, tags="TagA")):
                pass

        await closed_loop(send, options)


async def request_and_reply(options: Options) -> None:
    """Requester and replier in this process, the replier with its default of 20 handlers."""
    topic, body = options.topic, options.body()
    async with Producer(GROUP, namesrv=options.namesrv) as producer:

        async def reply(message: MessageExt) -> None:
            await producer.reply(message, message.body)

        async def request() -> None:
            await producer.request(Message(topic, body, tags="TagA"), REQUEST_SECONDS)

        group, config = f"bench-reply-{time.time_ns()}", PushConfig(start_from="latest")
        replier = PushConsumer(group, on_message=reply, namesrv=options.namesrv, config=config)
        async with replier:
            await replier.subscribe(topic)
            await replier.ready()
            await closed_loop(request, options)
