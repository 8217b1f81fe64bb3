"""Short runs of recorded clients on the embedded broker that give every rule something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Any

from rocketmq_aio.config.consumer import LitePullConfig, PopConfig, PushConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageModel, MessageQueue, TransactionState
from rocketmq_aio.producer.transaction.transaction import Transaction
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.history import UID, History, Recorder
from tests.history.clients import RecordedPushConsumer
from tests.history.events import Checkpointed, RangeRead
from tests.history.offset_table import OffsetTable
from tests.history.recording import stored_log
from tests.history.requests import record_requests
from tests.unit.remoting.until import until

TOPIC, GROUP = "orders", "billing"
TAGS = ("Aa", "BB")  # brokers compare hashes, which are equal
COUNT = 24
SECONDS = 20.0
DELAY_SECONDS = 2.5


def range_reads(batch: int, partition: Any, rows: list[dict[str, Any]]) -> Iterator[RangeRead]:  # noqa: ANN401
    """Yield an event for each range of *partition*, of which a Spark task made *rows*."""
    for part in partition.ranges:
        read = [row for row in rows if row["queueId"] == part.queue_id]
        yield RangeRead(
            at=monotonic(),
            group=GROUP,
            queue=MessageQueue(part.topic, part.broker, part.queue_id),
            batch=batch,
            begin=part.start,
            end=part.end,
            rows=[(row["queueOffset"], dict(row["properties"])[UID]) for row in read],
        )


class Run:
    """A cluster with one topic, and a recorder.

    :param mutated: the client may lose messages: a run also ends when it has committed everything
    :ivar recorder: of all clients of the run
    """

    def __init__(
        self, cluster: EmbeddedCluster, recorder: Recorder | None = None, *, mutated: bool = False
    ) -> None:
        self.cluster = cluster
        self._mutated = mutated
        self._stores: dict[str, OffsetTable] = {}
        self.recorder = recorder or Recorder()
        for level in range(len(cluster.broker.delays.seconds)):
            cluster.broker.delays.seconds[level] = 0.02

    @property
    def history(self) -> History:
        return self.recorder.history

    def finished(self) -> History:
        """Return the history with what the broker has stored."""
        for topic in list(self.cluster.broker.topics):
            self.recorder.stored(stored_log(topic, *self.cluster.brokers))
        if self.history.members or self.history.checkpoints:
            self.recorder.drained()
        return self.history

    async def until(self, reached: Callable[[], object]) -> None:
        """Wait until *reached*; a mutated client may never get there."""
        if self._mutated:
            await until(lambda: reached() or self._is_committed(), "the run to end", SECONDS)
        else:
            await until(reached, "the run to end", SECONDS)

    def _is_committed(self) -> bool:
        broker = self.cluster.broker
        return all(
            (broker.committed(GROUP, name, number) or 0) >= log.max_offset
            for name in (TOPIC, RETRY_PREFIX + GROUP)
            if name in broker.topics
            for number, log in enumerate(broker.topics[name].queues)
        )

    async def settled(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        await self.until(lambda: wanted <= {e.uid for e in self.history.settled if e.final})

    def uids(self, tag: str | None = None) -> set[str]:
        return {
            sent.uid
            for number, sent in enumerate(self.history.sends)
            if tag is None or TAGS[number % 2] == tag
        }

    # --- producers --------------------------------------------------------------------------------

    async def send(self, count: int = COUNT, **settings: object) -> None:
        """Send messages of three keys, then a batch."""
        config = ProducerConfig(**settings)  # type: ignore[arg-type]
        async with self.recorder.producer(
            "shop", namesrv=self.cluster.namesrv, config=config
        ) as producer:
            for number in range(count):
                message = Message(TOPIC, b"%d" % number, tags=TAGS[number % 2])
                try:
                    await producer.send(message, sharding_key=f"key-{number % 3}")
                except RocketMQError:
                    continue
            await producer.send_batch(
                [Message(TOPIC, b"batch %d" % n, tags=TAGS[n % 2]) for n in range(4)]
            )

    async def send_through_faults(self) -> None:
        """Send while responses are lost: with retries, then without."""
        self.cluster.faults.reset("send", times=2)
        await self.send(6)
        self.cluster.faults.reset("send", times=1)
        await self.send(6, retries=0)

    # --- consumers --------------------------------------------------------------------------------

    def push_consumer(
        self, *, orderly: bool = False, poison: bytes = b"", **settings: object
    ) -> RecordedPushConsumer:
        """Return a consumer whose handler fails once at 7, and always at *poison*."""
        failed: set[bytes] = set()

        async def handle(message: MessageExt) -> None:
            await asyncio.sleep(0.002)
            if message.body == poison or (message.body == b"7" and not failed):
                failed.add(message.body)
                raise ValueError(message.body)

        config = PushConfig(
            start_from="earliest",
            concurrency=2,
            commit_interval_seconds=0.01,
            suspend_seconds=0.02,
            close_timeout_seconds=1.0,
            **settings,  # type: ignore[arg-type]
        )
        return self.recorder.push_consumer(
            GROUP, on_message=handle, orderly=orderly, namesrv=self.cluster.namesrv, config=config
        )

    async def push(self, *, orderly: bool = False, selector: str = "*") -> None:
        """Consume with one member, later with two; one message becomes a dead letter."""
        await self.send()
        wanted = self.uids(None if selector == "*" else selector)
        poison = {sent.uid for sent in self.history.sends if sent.body == b"11"}
        settings = {"orderly": orderly, "poison": b"11", "max_reconsume_times": 1}
        async with self.push_consumer(**settings) as first:  # type: ignore[arg-type]
            await first.subscribe(TOPIC, selector)
            await self.until(lambda: len(self.history.settled) > COUNT // 4)
            async with self.push_consumer(**settings) as second:  # type: ignore[arg-type]
                await second.subscribe(TOPIC, selector)
                await self.settled(wanted - poison)
                epochs = self.history.epochs
                await until(lambda: len({e.consumer for e in epochs}) == 2, "queues", SECONDS)
                await asyncio.sleep(0.05)  # some commits of both
            await self.until(lambda: self.history.dead_lettered or selector != "*")
            await asyncio.sleep(0.05)  # some commits

    async def push_cancelled(self) -> None:
        """Cancel a handler that hangs."""
        await self.send(4)
        hung: set[bytes] = set()

        async def hang(message: MessageExt) -> None:
            if message.body not in hung:
                hung.add(message.body)
                await asyncio.Event().wait()

        config = PushConfig(
            start_from="earliest", commit_interval_seconds=0.01, consume_timeout_seconds=0.05
        )
        async with self.recorder.push_consumer(
            GROUP, on_message=hang, namesrv=self.cluster.namesrv, config=config
        ) as consumer:
            await consumer.subscribe(TOPIC)
            await self.settled(self.uids())
            await asyncio.sleep(0.05)

    async def push_popped(self) -> None:
        """Consume queues that the broker assigns to be popped."""
        self.cluster.create_group(GROUP)
        self.cluster.broker.assignments.modes[TOPIC, GROUP] = MessageRequestMode.POP
        await self.send(7)
        async with self.push_consumer(client_rebalance=False) as consumer:
            await consumer.subscribe(TOPIC)
            await self.settled(self.uids())
            await asyncio.sleep(0.05)

    async def poll(self) -> None:
        """Poll in small batches, seek back once, and hand the queues to another consumer."""
        await self.send()
        config = LitePullConfig(start_from="earliest", commit_interval_seconds=0.01)
        sought = False
        for share in (COUNT // 2, COUNT + 4):
            async with self.recorder.lite_pull_consumer(
                GROUP, namesrv=self.cluster.namesrv, config=config
            ) as consumer:
                await consumer.subscribe(TOPIC)
                await consumer.ready(SECONDS)
                seen = 0
                while seen < share and (messages := await consumer.poll(0.3, 3)):
                    seen += len(messages)
                    await asyncio.sleep(0.015)
                    if not sought:
                        sought = True
                        await consumer.seek(messages[0].queue, messages[0].queue_offset)

    async def pause(self) -> None:
        """Poll with each queue paused for a while."""
        await self.send()
        config = LitePullConfig(start_from="earliest", commit_interval_seconds=0.01)
        async with self.recorder.lite_pull_consumer(
            GROUP, namesrv=self.cluster.namesrv, config=config
        ) as consumer:
            await consumer.subscribe(TOPIC)
            await consumer.ready(SECONDS)
            for _ in range(4):
                for message in await consumer.poll(0.3, 2):
                    consumer.pause([message.queue])
                    await consumer.poll(0.02, 2)
                    consumer.resume([message.queue])
            while await consumer.poll(0.3):
                pass

    async def pull(self) -> None:
        """Pull each queue in small batches, to its end."""
        await self.send()
        self.recorder.subscribed(GROUP, TOPIC)
        async with self.recorder.pull_consumer(GROUP, namesrv=self.cluster.namesrv) as consumer:
            for queue in await consumer.message_queues(TOPIC):
                offset = 0
                while (result := await consumer.pull(queue, offset, 5)).messages:
                    offset = result.next_offset
                    consumer.processed(queue, offset)

    async def broadcast(self) -> None:
        """Consume with two members that each get all messages; one starts again."""
        await self.send(7)
        wanted = self.uids()
        for name in ("first", "second", "first"):
            store = self._stores.setdefault(name, OffsetTable(name, {}))
            config = PushConfig(
                start_from="earliest",
                message_model=MessageModel.BROADCASTING,
                offset_store=store,
                commit_interval_seconds=0.01,
            )

            async def handle(_message: MessageExt) -> None: ...

            async with self.recorder.push_consumer(
                GROUP, on_message=handle, namesrv=self.cluster.namesrv, config=config
            ) as consumer:
                await consumer.subscribe(TOPIC)
                await consumer.ready(SECONDS)
                if not self._mutated:
                    await until(partial(store.covers, len(wanted)), "all", SECONDS)
                await asyncio.sleep(0.05)

    async def delay(self) -> None:
        """Delay two messages, and recall one of them."""
        self.cluster.broker.state.update_settings({"recallMessageEnable": "true"})
        async with self.recorder.producer("shop", namesrv=self.cluster.namesrv) as producer:
            for name in (b"delayed", b"recalled"):
                message = Message(TOPIC, name, delay_seconds=DELAY_SECONDS)
                result = await producer.send(message)
            await producer.recall(TOPIC, result.recall_handle)
        async with self.push_consumer() as consumer:
            await consumer.subscribe(TOPIC)
            await until(lambda: not len(self.cluster.broker.timers.waiting), "the time", SECONDS)
            await self.until(lambda: len(self.history.settled) >= 1)
            await asyncio.sleep(0.3)  # a second one would arrive

    async def request(self) -> None:
        """Make two requests at once, to which a consumer replies."""
        producer = self.recorder.producer("shop", namesrv=self.cluster.namesrv)

        async def reply(message: MessageExt) -> None:
            await producer.reply(message, message.body)

        config = PushConfig(start_from="earliest")
        async with (
            producer,
            self.recorder.push_consumer(
                GROUP, on_message=reply, namesrv=self.cluster.namesrv, config=config
            ) as consumer,
        ):
            await consumer.subscribe(TOPIC)
            await consumer.ready(SECONDS)
            requests = [producer.request(Message(TOPIC, b"%d" % n), SECONDS) for n in range(2)]
            await asyncio.gather(*requests)

    async def pop(self) -> None:
        """Receive and acknowledge; one message is given back, one expires."""
        await self.send(6)
        config = PopConfig(invisible_seconds=30.0, wait_seconds=0.3)
        async with self.recorder.pop_consumer(
            GROUP, namesrv=self.cluster.namesrv, config=config
        ) as consumer:
            await consumer.subscribe(TOPIC)
            again = True
            for _ in range(20):
                messages = await consumer.receive(4)
                if again and messages:
                    await consumer.retry(messages.pop(), 0.2)
                    again = False
                await consumer.ack(messages)
                if self.uids() <= {e.uid for e in self.history.settled if e.final}:
                    break

    async def transactions(self) -> None:
        """Commit, roll back, leave to the check, and fail to store a half message."""

        broker = self.cluster.broker

        async def check(_message: MessageExt) -> TransactionState:
            return TransactionState.COMMIT

        async with self.recorder.transaction_producer(
            "till",
            check=check,
            namesrv=self.cluster.namesrv,
            config=ProducerConfig(send_timeout_seconds=1.0, retries=0),
        ) as producer:
            async with producer.transaction(Message(TOPIC, b"committed")):
                pass
            async with producer.transaction(Message(TOPIC, b"rolled back")) as transaction:
                await transaction.rollback()
            async with producer.transaction(Message(TOPIC, b"left open")) as transaction:
                transaction.unknown()
            await producer.send_in_transaction(Message(TOPIC, b"function"), self._execute)
            self.cluster.faults.refuse("send", 1, times=1)
            try:
                async with producer.transaction(Message(TOPIC, b"refused")):
                    pass
            except RocketMQError:
                pass
            await broker.check_transactions()
            await until(lambda: not broker.transactions.open, "all to be decided", SECONDS)
        async with self.push_consumer() as consumer:
            await consumer.subscribe(TOPIC)
            await self.until(lambda: len(self.history.handled) >= len(broker.messages(TOPIC)))
            await asyncio.sleep(0.05)

    async def transaction_checked_early(self) -> None:
        """Have the broker check a transaction during its local part."""

        async def check(_message: MessageExt) -> TransactionState:
            return TransactionState.COMMIT

        broker, ends = self.cluster.broker, self.history.transaction_ends
        async with (
            self.recorder.transaction_producer(
                "till", check=check, namesrv=self.cluster.namesrv
            ) as producer,
            producer.transaction(Message(TOPIC, b"checked")),
        ):
            await broker.check_transactions()
            await until(lambda: ends, "the response", SECONDS)
        async with self.push_consumer() as consumer:
            await consumer.subscribe(TOPIC)
            await self.until(lambda: self.history.settled)

    async def stream(self) -> None:
        """Read micro-batches as Spark does, with a task that is repeated."""
        await self.send()
        self.recorder.subscribed(GROUP, TOPIC)
        await asyncio.to_thread(self._stream)

    def _stream(self) -> None:
        # Not at the top: other runs do not need Spark.
        from pyspark.sql.streaming.datasource import ReadMaxRows

        from rocketmq_aio.spark.arrow.columns import SCHEMA
        from rocketmq_aio.spark.options.source_options import read_options
        from rocketmq_aio.spark.read.stream_reader import RocketMQStreamReader
        from rocketmq_aio.spark.runtime import Runtime

        given = {
            "nameServer": self.cluster.namesrv,
            "subscribe": TOPIC,
            "group": GROUP,
            "startingOffsets": "earliest",
            "commitOffsets": "true",
        }
        options = read_options(given, streaming=True)
        runtime = Runtime.get(options.connection)
        record_requests(runtime.instance, self.recorder)
        reader = RocketMQStreamReader(options, SCHEMA)
        start, batch = reader.initialOffset(), 0
        try:
            while (end := reader.latestOffset(start, ReadMaxRows(10))) != start:
                batch += 1
                for partition in 2 * list(reader.partitions(start, end)):
                    rows = [r for found in reader.read(partition) for r in found.to_pylist()]
                    for event in range_reads(batch, partition, rows):
                        self.recorder.add(event)
                self.recorder.add(Checkpointed(at=monotonic(), group=GROUP, batch=batch))
                reader.commit(end)
                start = end
        finally:
            runtime.call(runtime.instance.close)

    async def _execute(self, _transaction: Transaction) -> TransactionState:
        return TransactionState.COMMIT
