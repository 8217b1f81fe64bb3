"""MessageDecoder: the limit on the event loop, and threads for the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull_loop.message_decoder import LOOP_BYTES, MessageDecoder
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import record
from rocketmq_aio.protocol.compression import MAX_INFLATED, InflationLimitError, compress, inflate
from rocketmq_aio.protocol.decoding import Decode, Decoded, decoder_of
from rocketmq_aio.protocol.record import decode_messages
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, consuming
from tests.unit.consumer.puller_env import PullerEnv, found
from tests.unit.remoting.until import until
from tests.unit.stored import COMPRESSED, INNER, Stored, batch_entry

QUEUE = MessageQueue("orders", "broker-a", 3)
LARGE = b"0123456789abcdef" * 2**16  # 1 MiB
PACKED = compress(LARGE, "zlib", 1)


def large(count: int, first: int = 0) -> bytes:
    """Return messages of 1 MiB each, compressed, back to back."""
    return b"".join(
        Stored(body=PACKED, sys_flag=COMPRESSED, queue_offset=first + each).to_bytes()
        for each in range(count)
    )


def decoder(decode: Decode = decode_messages) -> MessageDecoder:
    instance = SimpleNamespace(remoting=SimpleNamespace(decode=decode))
    return MessageDecoder(cast(MQClientInstance, instance))


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the bodies that were inflated, or tried, in the thread of the event loop."""
    sizes: list[int] = []
    main = threading.get_ident()

    def noting(data: bytes, sys_flag: int, *, limit: int) -> bytes:
        size = limit  # as much as it may take if it fails
        try:
            body = inflate(data, sys_flag, limit=limit)
            size = len(body)
            return body
        finally:
            if threading.get_ident() == main:
                sizes.append(size)

    monkeypatch.setattr(record, "inflate", noting)
    return sizes


@pytest.fixture
def threads() -> Iterator[Callable[[], list[str]]]:
    """Returns the names of the threads that decode; none is left after a test."""

    def names() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("rocketmq-decode")]

    yield names
    for thread in threading.enumerate():
        if thread.name.startswith("rocketmq-decode"):
            thread.join(15)
    assert names() == []


def test_an_answer_below_the_bound_is_decoded_without_suspending() -> None:
    small = Stored(body=compress(bytes(LOOP_BYTES - 10_000), "zlib", 1), sys_flag=COMPRESSED)
    decoding = decoder().decode(Stored().to_bytes() * 100 + small.to_bytes(), QUEUE)
    with pytest.raises(StopIteration) as ended:
        decoding.send(None)

    messages, fault = cast(Decoded, ended.value.value)
    assert (len(messages), fault) == (101, None)


@pytest.mark.usefixtures("threads")
async def test_a_large_answer_is_inflated_in_the_loop_up_to_the_bound_only(
    in_loop: list[int],
) -> None:
    used = decoder()
    messages, fault = await used.decode(Stored().to_bytes() + large(20, first=8), QUEUE)
    used.close()

    assert fault is None
    assert [each.queue_offset for each in messages] == list(range(7, 28))
    assert {each.body for each in messages[1:]} == {LARGE}
    assert sum(in_loop) <= LOOP_BYTES


def test_messages_of_a_batch_are_made_up_to_the_limit_only() -> None:
    entries = b"".join(batch_entry(b"%d" % each) for each in range(3000))
    batch = Stored(body=compress(entries, "zlib", 1), sys_flag=INNER | COMPRESSED)
    first = Stored().to_bytes()
    messages, fault = decode_messages(first + batch.to_bytes(), QUEUE, limit=LOOP_BYTES)

    assert isinstance(fault, InflationLimitError)
    assert (len(messages), fault.position) == (1, len(first))
    assert len(decode_messages(batch.to_bytes(), QUEUE)[0]) == 3000


@pytest.mark.usefixtures("threads")
async def test_a_decoding_error_behind_large_messages_has_its_position() -> None:
    data = large(3) + b"\0" * 200
    used = decoder()
    messages, fault = await used.decode(data, QUEUE)
    used.close()

    assert len(messages) == 3
    assert (type(fault), str(fault)) == (
        type(decode_messages(data, QUEUE)[1]),
        str(decode_messages(data, QUEUE)[1]),
    )


@pytest.mark.parametrize(
    "config",
    [ClientConfig(verify_checksums=True), ClientConfig(namespace="shop")],
    ids=["checksums", "namespace"],
)
@pytest.mark.usefixtures("threads")
async def test_the_bound_holds_with_every_setting(config: ClientConfig, in_loop: list[int]) -> None:
    topic = b"shop%orders" if config.namespace else b"orders"
    data = b"".join(
        Stored(body=PACKED, sys_flag=COMPRESSED, topic=topic, queue_offset=each).to_bytes()
        for each in range(3)
    )
    used = decoder(decoder_of(config))
    messages, fault = await used.decode(data, QUEUE)
    used.close()

    assert fault is None
    assert [(each.topic, each.body) for each in messages] == [("orders", LARGE)] * 3
    assert sum(in_loop) <= LOOP_BYTES


class Held:
    """A decoder whose threads wait until they are released."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls = 0

    def __call__(
        self, data: bytes, queue: MessageQueue, /, *, limit: int = MAX_INFLATED
    ) -> tuple[list[MessageExt], Exception | None]:
        if limit == MAX_INFLATED:
            self.calls += 1
            self.go_on.wait(15)
        return decode_messages(data, queue, limit=limit)


async def test_the_loop_runs_while_a_large_answer_is_decoded(
    threads: Callable[[], list[str]],
) -> None:
    held = Held()
    used = decoder(cast(Decode, held))
    decoding = asyncio.create_task(used.decode(large(2), QUEUE))
    await until(lambda: held.calls, "a thread")
    assert not decoding.done()
    held.go_on.set()
    messages, _ = await decoding
    assert len(messages) == 2
    assert threads()

    used.close()


@pytest.mark.usefixtures("threads")
async def test_a_cancelled_caller_returns_at_once_and_the_next_one_is_served() -> None:
    held = Held()
    used = decoder(cast(Decode, held))
    decoding = asyncio.create_task(used.decode(large(2), QUEUE))
    await until(lambda: held.calls, "a thread")
    decoding.cancel()
    await asyncio.wait([decoding])
    assert decoding.cancelled()
    held.go_on.set()
    messages, _ = await used.decode(large(2), QUEUE)
    used.close()

    assert len(messages) == 2


async def test_without_threads_an_answer_is_decoded_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    used = decoder()
    for _ in range(2):
        messages, fault = await used.decode(large(2), QUEUE)
        assert (len(messages), fault) == (2, None)
        assert used._threads is None  # what the executor kept of the response is gone


async def test_after_close_no_thread_starts(threads: Callable[[], list[str]]) -> None:
    used = decoder()
    used.close()
    messages, _ = await used.decode(large(2), QUEUE)

    assert len(messages) == 2
    assert threads() == []


@pytest.mark.usefixtures("threads", "impatient")
async def test_a_pull_loop_inflates_in_the_loop_up_to_the_bound_only(
    env: PullerEnv, in_loop: list[int]
) -> None:
    env.put(*map(str, range(8)))
    env.respond(found(8, large(8)))
    env.begin()
    taken = await env.polled(8)

    assert [each.queue_offset for each in taken] == list(range(8))
    assert sum(in_loop) <= LOOP_BYTES


@pytest.mark.usefixtures("threads", "impatient")
async def test_a_seek_while_an_answer_is_decoded_wins(env: PullerEnv) -> None:
    held = Held()
    env.puller._decoder._decode = cast(Decode, held)
    env.put("a", "b", "c")
    env.respond(found(3, large(3)))
    assigned = env.begin()
    await until(lambda: held.calls, "a thread")
    assigned.seek(2)
    held.go_on.set()

    assert [each.body for each in await env.polled(1)] == [b"c"]


@pytest.mark.usefixtures("threads")
async def test_pulls_by_offset_inflate_in_the_loop_up_to_the_bound_only(
    cluster: FakeCluster, in_loop: list[int]
) -> None:
    async with PullConsumer("tools", namesrv=cluster.namesrv) as puller:
        cluster.faults.handle(11, Response(0, found(8).ext, large(8)))
        result = await puller.pull(MessageQueue(TOPIC, "broker-a", 0), 0)

    assert len(result.messages) == 8
    assert sum(in_loop) <= LOOP_BYTES


async def test_closing_a_consumer_ends_its_threads(
    cluster: FakeCluster, threads: Callable[[], list[str]]
) -> None:
    async with consuming(cluster) as consumer:
        await consumer._engine._puller._decoder.decode(large(2), MessageQueue(TOPIC, "broker-a", 0))
        assert threads()

    await until(lambda: not threads(), "the threads to end")
