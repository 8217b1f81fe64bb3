"""Message traces on real brokers, compared with mqadmin and the Java client."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

from rocketmq_aio import (
    Message,
    MessageTrace,
    Producer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading import Stored, read_topic
from tests.broker.reading_groups import in_thread
from tests.broker.test_compression_interop import java
from tests.unit.remoting.until import until

TRACE: Final = "RMQ_SYS_TRACE_TOPIC"
PEER: Final = Path(__file__).parent / "java" / "Trace.java"
BODY: Final = "hello trace"
WAIT_SECONDS: Final = 60.0
# Fields that differ between runs: times, ids, offsets.
VARYING: Final = {"Pub": {1, 5, 10, 12}, "SubBefore": {1, 4, 5}, "SubAfter": {1, 2, 3, 7}}


async def traced(cluster: Cluster, message_id: str, count: int) -> list[str]:
    """Wait for *count* trace records of a message; return them."""
    found: list[str] = []

    def look() -> bool:
        stored: list[Stored] = read_topic(cluster, TRACE, 1)
        texts = [each.body.decode() for each in stored if message_id in each.properties["KEYS"]]
        found[:] = [
            record for text in texts for record in text.split("\x02") if message_id in record
        ]
        return len(found) >= count

    async with asyncio.timeout(WAIT_SECONDS):
        while not await in_thread(look):
            pass  # each query takes a while
    assert len(found) == count
    return found


async def send(cluster: Cluster, topic: str, group: str) -> str:
    """Send one message with a trace; return its id."""
    async with Producer(group, namesrv=cluster.namesrv, hooks=[MessageTrace()]) as producer:
        result = await producer.send(
            Message(topic, BODY.encode(), tags="new", keys="42 43".split())
        )
    return result.message_id


async def consume(cluster: Cluster, topic: str, group: str) -> None:
    """Handle one message with a trace."""
    seen: list[str] = []

    async def handle(message: object) -> None:
        seen.append(str(message))

    config = PushConfig(start_from="earliest")
    async with PushConsumer(
        group, on_message=handle, namesrv=cluster.namesrv, config=config, hooks=[MessageTrace()]
    ) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: bool(seen))


def comparable(records: list[str]) -> list[list[str]]:
    """Return records sorted by kind, without fields that differ between runs."""
    fields = [record.split("\x01") for record in records]
    kept = [[f for i, f in enumerate(each) if i not in VARYING[each[0]]] for each in fields]
    return sorted(kept)


async def test_mqadmin_shows_the_producer_and_the_consumer_of_a_message(
    rocketmq_cluster: Cluster, topic: str, group: str
) -> None:
    cluster = rocketmq_cluster
    message_id = await send(cluster, topic, f"p-{group}")
    await consume(cluster, topic, group)
    await traced(cluster, message_id, 3)

    shown = await in_thread(cluster.mqadmin, "queryMsgTraceById", "-i", message_id)
    lines = [line.split() for line in shown.splitlines()]
    assert [line for line in lines if line[:2] == ["Pub", f"p-{group}"] and "success" in line]
    assert [line for line in lines if line[:1] != ["Pub"] and group in line and "success" in line]


async def test_trace_bodies_equal_those_of_java(
    rocketmq_cluster: Cluster, rocketmq_version: str, topic: str, group: str, tmp_path: Path
) -> None:
    cluster, version, producer = rocketmq_cluster, rocketmq_version, f"p-{group}"

    async def peer(*arguments: str) -> list[str]:
        printed = await in_thread(lambda: java(version, tmp_path, *arguments, source=PEER))
        # Clients of 4.9 print what they log, too.
        return [line[5:] for line in printed.splitlines() if line.startswith("said ")]

    mine_id = await send(cluster, topic, producer)
    await consume(cluster, topic, group)
    mine = await traced(cluster, mine_id, 3)

    async def theirs_of_one() -> list[str]:
        (java_id,) = await peer("send", cluster.namesrv, topic, producer, BODY)
        await peer("consume", cluster.namesrv, topic, group)
        return await traced(cluster, java_id, 3)

    try:
        theirs = await theirs_of_one()
    except TimeoutError:  # a shutdown of the official client waits half a second for its traces
        theirs = await theirs_of_one()

    # 4.9 brokers return no region: Java writes "null", this client the default.
    theirs = [
        each.replace(f"\x01null\x01{group}", f"\x01DefaultRegion\x01{group}") for each in theirs
    ]
    assert comparable(mine) == comparable(theirs)

    async def check(message: object) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(
        producer, check=check, namesrv=cluster.namesrv, hooks=[MessageTrace()]
    ) as transactions:
        order = Message(topic, BODY.encode(), keys="44")
        async with transactions.transaction(order) as running:
            half_id = running.message_id
    ended = await traced(cluster, half_id, 2)
    assert sorted(each.split("\x01")[0] for each in ended) == ["EndTransaction", "Pub"]
    written = "".join(f"{each}\x02" for each in [*mine, *ended])
    again = await peer("rewrite", b64encode(written.encode()).decode())
    assert "".join(b64decode(line).decode() for line in again) == written


async def test_a_trace_of_many_messages_is_complete(
    rocketmq_cluster: Cluster, topic: str, group: str
) -> None:
    trace = MessageTrace()
    async with Producer(group, namesrv=rocketmq_cluster.namesrv, hooks=[trace]) as producer:
        sent = [producer.send_nowait(Message(topic, b"%d" % n)) for n in range(500)]
        await asyncio.gather(*sent)
        batch = await producer.send_batch([Message(topic, b"x"), Message(topic, b"y")])

    assert (trace.sent, trace.dropped) == (502, 0)
    for message_id in (sent[0].result().message_id, batch[1].message_id):
        (record,) = await traced(rocketmq_cluster, message_id, 1)
        assert record.startswith("Pub\x01")
