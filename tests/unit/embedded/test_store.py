"""The message store: positions, bounded memory, waiters."""

from __future__ import annotations

import asyncio

from rocketmq_aio.embedded.broker.store import MessageStore, NewMessage
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.server import VERSIONS

KIB = 1024


def store_of(max_bytes: int = 1024 * KIB, version: str = "5.5.0") -> MessageStore:
    store = MessageStore(VERSIONS[version], "DefaultCluster", Clock(), max_bytes)
    store.create_topic("orders", 2)
    store.create_topic("idle", 1)
    return store


def put(store: MessageStore, body: bytes, queue_id: int = 0, topic: str = "orders") -> int:
    """Store a message; return its log offset."""
    return store.append(NewMessage(topic=topic, queue_id=queue_id, body=body)).log_offset


def test_a_message_is_found_by_its_log_offset() -> None:
    store = store_of()
    offsets = [put(store, b"%d" % number, number % 2) for number in range(10)]

    found = [store.find(offset) for offset in offsets]
    assert [each.body for each in found if each] == [b"%d" % number for number in range(10)]
    assert store.find(offsets[3] + 1) is None
    assert store.find(10**12) is None


def test_a_stored_message_can_be_stored_again() -> None:
    store = store_of()
    message = NewMessage(
        topic="orders",
        queue_id=1,
        body=b"body",
        properties={"UNIQ_KEY": "U", "a": "1"},
        flag=7,
        sys_flag=1,
        born_ms=5,
        born_host=("127.0.0.9", 99),
        reconsume_times=2,
    )
    again = store.append(message).to_new("idle", 0, reconsume_times=3)

    assert (again.topic, again.queue_id, again.body) == ("idle", 0, b"body")
    assert again.properties["a"] == "1"
    assert (again.flag, again.sys_flag, again.born_ms) == (7, 1, 5)
    assert (again.born_host, again.reconsume_times) == (("127.0.0.9", 99), 3)


def test_the_properties_of_a_message_in_a_topic_with_a_long_name_are_read() -> None:
    store = store_of()
    for name in ("r" * 127, "r" * 128, "r" * 300):
        store.create_topic(name, 1)
        message = NewMessage(topic=name, queue_id=0, body=b"", properties={"TAGS": "t"})

        assert store.append(message).tag == "t"


def test_the_oldest_messages_of_all_queues_are_deleted_first() -> None:
    store = store_of(max_bytes=64 * KIB)
    for number in range(200):
        put(store, bytes(KIB), number % 2)
    queues = store.topics["orders"].queues

    kept = [len(queue.messages) for queue in queues]
    assert sum(len(stored.record) for stored in store.log) <= 64 * KIB
    assert abs(kept[0] - kept[1]) <= 1
    assert sum(kept) == len(store.log) > 30
    assert [queue.max_offset for queue in queues] == [100, 100]
    assert all(queue.min_offset == 100 - len(queue.messages) for queue in queues)
    assert store.find(store.log_start) is store.log[0]


def test_a_queue_without_new_messages_loses_its_old_ones() -> None:
    store = store_of(max_bytes=64 * KIB)
    put(store, b"old", topic="idle")
    for _ in range(100):
        put(store, bytes(KIB))

    (idle,) = store.topics["idle"].queues
    assert (idle.min_offset, idle.max_offset, idle.messages) == (1, 1, [])


def test_the_newest_message_is_kept_even_above_the_limit() -> None:
    store = store_of(max_bytes=KIB)
    for _ in range(3):
        put(store, bytes(4 * KIB))

    assert len(store.log) == 1
    assert store.topics["orders"].queues[0].min_offset == 2


def test_a_deleted_topic_frees_its_memory() -> None:
    store = store_of(max_bytes=64 * KIB)
    for _ in range(30):
        put(store, bytes(KIB))
    store.delete_topic("orders")
    store.create_topic("orders", 1)
    for _ in range(30):
        put(store, bytes(KIB))

    assert len(store.log) == 30
    assert store.topics["orders"].queues[0].min_offset == 0


async def test_waiters_are_woken_by_their_queue_only() -> None:
    store = store_of()
    here = asyncio.ensure_future(store.arrivals.wait([("orders", 0)], 3600))
    other = asyncio.ensure_future(store.arrivals.wait([("orders", 1)], 3600))
    topic = asyncio.ensure_future(store.arrivals.wait(["orders", "idle"], 3600))
    await asyncio.sleep(0)
    put(store, b"body", 0)
    await asyncio.wait([here, topic])

    assert not other.done()
    store.clock.advance(3600)
    await other


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    store = store_of()
    waiter = asyncio.ensure_future(store.arrivals.wait(["orders"], 3600))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])

    assert store.arrivals.waiting == {}
