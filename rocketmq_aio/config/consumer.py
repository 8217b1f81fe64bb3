"""Settings of the consumers: LitePullConfig, PushConfig and PopConfig."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, Literal, Protocol, TypeAlias, get_args

from rocketmq_aio.config.validation import (
    MIB,
    check_allocate,
    check_bool,
    check_choice,
    check_count,
    check_seconds,
    check_start_from,
    settings,
)
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.codec import Codec, V, check_codec
from rocketmq_aio.model.values import MessageModel, MessageQueue

OffsetPolicy: TypeAlias = Literal["broker", "earliest", "latest", "error"]
"""What happens at an offset that the broker does not have."""
UnreadablePolicy: TypeAlias = Literal["hold", "skip"]
"""What happens at a stored message that cannot be read."""
UndecodablePolicy: TypeAlias = Literal["retry", "dead_letter", "skip"]
"""What happens to a message that the codec cannot decode."""
StartFrom: TypeAlias = Literal["latest", "earliest"]
"""Where a new group begins."""
AllocateStrategy: TypeAlias = Callable[
    [str, Sequence[MessageQueue], Sequence[str]], Iterable[MessageQueue]
]
"""``(client_id, queues, client_ids) -> queues``; both lists come sorted, the id is in its list."""

MAX_CONCURRENCY: Final = 1000
MAX_PULL: Final = 1024  # messages that one pull may bring
MAX_POP: Final = 32


class OffsetStore(Protocol):
    """Keeps, per queue, the offset of the next message to consume.

    Write your own to keep progress in a database; a consumer takes it as ``offset_store=``.  One
    store serves one group in one consumer.  The consumer calls `load` once, before anything else;
    later calls may overlap, also for the same queue, and any of them may be cancelled.  An
    offset never covers a message that is not settled.

    Whatever a store raises should be a `RocketMQError` (wrap the driver's exceptions): that is
    retried later, while anything else is taken for a bug and ends the consumer.
    """

    async def load(self) -> None:
        """Get ready: connect, or read what is there.

        :raises RocketMQError: it cannot; the consumer does not start
        """

    async def read(self, queue: MessageQueue) -> int | None:
        """Return where to go on in *queue*: an `update` not yet persisted wins over what is kept.

        None says for sure that nothing is kept, and the consumer begins where a new group
        begins; so never return it because the answer could not be had.

        :raises RocketMQError: it cannot be known now; the queue waits and is asked for again
        """

    async def update(self, queue: MessageQueue, offset: int) -> None:
        """Note that everything below *offset* is done; in memory, or durably at once.

        May go backwards: somebody asked for that with a seek.
        """

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Make the last `update` of each of *queues* durable before returning.

        Queues without an update, or without one since the last time, cost nothing.  Called every
        few seconds, before a queue is given to another member, and on close.

        :raises CommitError: some failed, ``lost`` says which and why, the others are durable;
            what is lost is kept and tried again by the next call
        """

    async def remove(self, queue: MessageQueue) -> None:
        """Forget what is in memory about *queue*, which this consumer has given up.

        What is durable stays.
        """


@settings
class ConsumerConfig(Generic[V]):
    """What every kind of consumer understands.

    :param start_from: where a group that is new to a topic begins: ``"latest"``, ``"earliest"``
        or an aware datetime; a queue that is added to a topic later is read from its beginning
    :param pull_batch_size: messages asked for at once (brokers answer at most 32 by default)
    :param pull_threshold_per_queue: messages cached per queue before pulling pauses
    :param max_span: offsets between the first and last cached message of a queue
    :param allocate: ``(client_id, queues, client_ids) -> queues``, or a mapping of topic to such;
        None, and topics that a mapping does not name, is `AllocateAveragely`
    :param offset_store: where progress is kept; None is the broker (clustering) or a local file
        (broadcasting)
    :param offset_illegal: what to do when the broker says that an offset does not exist:
        follow its correction, go to the ``"earliest"`` or ``"latest"`` offset, or ``"error"``
    :param unreadable: what to do at a stored message that cannot be read, being damaged or packed
        by a library that is not installed: ``"hold"`` its queue there and ask again, or ``"skip"``
    :param codec: makes `MessageExt.value` of bodies, such as ``JSONCodec(Order)``
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    start_from: StartFrom | datetime = "latest"
    pull_batch_size: int = 32
    pull_threshold_per_queue: int = 1000
    pull_threshold_bytes_per_queue: int = 100 * MIB
    max_span: int = 2000
    allocate: AllocateStrategy | Mapping[str, AllocateStrategy] | None = None
    offset_store: OffsetStore | None = None
    offset_illegal: OffsetPolicy = "broker"
    unreadable: UnreadablePolicy = "hold"
    long_poll_seconds: float = 15.0
    rebalance_interval_seconds: float = 20.0
    codec: Codec[V] | None = None

    def __post_init__(self) -> None:
        check_codec(self.codec)
        if not isinstance(self.message_model, MessageModel):
            raise ConfigError("message_model", self.message_model, "expected a MessageModel")
        check_start_from(self.start_from)
        check_count(
            self,
            "pull_batch_size",
            "pull_threshold_per_queue",
            "pull_threshold_bytes_per_queue",
            "max_span",
        )
        check_choice(self, "offset_illegal", get_args(OffsetPolicy))
        check_choice(self, "unreadable", get_args(UnreadablePolicy))
        check_seconds(self, "long_poll_seconds", "rebalance_interval_seconds")
        check_allocate(self.allocate)


@settings
class LitePullConfig(ConsumerConfig[V]):
    """What `LitePullConsumer` understands besides.

    :param auto_commit: commit, every *commit_interval_seconds*, what earlier polls returned
    :param pull_threshold_total: messages cached over all queues before pulling pauses
    :param pull_threshold_bytes_total: bytes of bodies cached over all queues, likewise
    :param topic_check_interval_seconds: how often the queue listeners look for changes
    """

    auto_commit: bool = True
    commit_interval_seconds: float = 5.0
    pull_threshold_total: int = 10_000
    pull_threshold_bytes_total: int = 256 * MIB
    topic_check_interval_seconds: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool(self, "auto_commit")
        check_seconds(self, "commit_interval_seconds", "topic_check_interval_seconds")
        check_count(self, "pull_threshold_total", "pull_threshold_bytes_total")


@settings
class PushConfig(ConsumerConfig[V]):
    """What `PushConsumer` understands besides.

    :param concurrency: handlers that may run at once; changed at run time with
        ``consumer.set_concurrency``
    :param consume_batch_size: messages of one queue given to ``on_batch`` at once
    :param max_reconsume_times: retries before a message becomes a dead letter; None is 16, and
        for orderly consumption no limit
    :param consume_timeout_seconds: the longest a handler may work on a message; then it is
        cancelled and the message retried
    :param suspend_seconds: pause of a queue before an orderly handler is called again with the
        message that failed
    :param pull_interval_seconds: pause between two pulls of a queue
    :param pull_threshold_per_topic: messages cached over all queues of a topic that this consumer
        has, shared out among them; None leaves the thresholds per queue alone
    :param pull_threshold_bytes_per_topic: bytes of bodies, likewise
    :param commit_interval_seconds: how often progress is stored
    :param close_timeout_seconds: how long running handlers may go on when a queue is given up or
        the consumer is closed
    :param stuck_seconds: an event names the queue whose handler takes longer for a message
    :param client_rebalance: False lets the broker (5.x) share the queues out, and choose between
        pulling and popping
    :param pop_invisible_seconds: for a popped message to be done before others may get it
    :param pop_batch_size: messages popped at once
    :param pop_threshold_per_queue: popped messages that are not done before popping pauses
    :param undecodable: what happens to a message that *codec* cannot read, before any handler sees
        it: ``"retry"`` it as if a handler had failed, make it a ``"dead_letter"``, or ``"skip"`` it
    """

    concurrency: int = 20
    consume_batch_size: int = 1
    max_reconsume_times: int | None = None
    consume_timeout_seconds: float = 900.0
    suspend_seconds: float = 1.0
    pull_interval_seconds: float = 0.0
    pull_threshold_per_topic: int | None = None
    pull_threshold_bytes_per_topic: int | None = None
    commit_interval_seconds: float = 5.0
    close_timeout_seconds: float = 10.0
    stuck_seconds: float = 60.0
    client_rebalance: bool = True
    pop_invisible_seconds: float = 60.0
    pop_batch_size: int = 32
    pop_threshold_per_queue: int = 96
    undecodable: UndecodablePolicy = "retry"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool(self, "client_rebalance")
        check_choice(self, "undecodable", get_args(UndecodablePolicy))
        check_count(self, "pop_threshold_per_queue")
        check_count(self, "concurrency", most=MAX_CONCURRENCY)
        check_count(self, "consume_batch_size", most=MAX_PULL)
        check_count(self, "pop_batch_size", most=MAX_POP)
        for name in (
            "max_reconsume_times",
            "pull_threshold_per_topic",
            "pull_threshold_bytes_per_topic",
        ):
            if getattr(self, name) is not None:
                check_count(self, name, least=0 if name == "max_reconsume_times" else 1)
        check_seconds(
            self,
            "consume_timeout_seconds",
            "suspend_seconds",
            "commit_interval_seconds",
            "stuck_seconds",
        )
        check_seconds(self, "pull_interval_seconds", "close_timeout_seconds", least=0)
        check_seconds(self, "pop_invisible_seconds", least=5, most=300)  # as in the Java client


@settings
class PopConfig(Generic[V]):
    """What `PopConsumer` understands.

    :param invisible_seconds: for a message to be done before the broker gives it to others
    :param batch_size: messages received at once unless said otherwise, at most 32
    :param wait_seconds: how long a broker may hold a request for messages to come
    :param max_reconsume_times: deliveries after the first before a message becomes a dead letter
    :param start_from: where a group that is new to a topic begins: ``"earliest"``, or ``"latest"``:
        at the last message of a queue; a young queue is given whole all the same
    :param orderly: messages of a queue in order, one batch after the other
    :param renew_seconds: how long ``async for`` keeps a message from others at most
    :param codec: makes `MessageExt.value` of bodies, such as ``JSONCodec(Order)``
    """

    invisible_seconds: float = 60.0
    batch_size: int = 32
    wait_seconds: float = 15.0
    max_reconsume_times: int = 16
    start_from: StartFrom = "latest"
    orderly: bool = False
    renew_seconds: float = 900.0
    codec: Codec[V] | None = None

    def __post_init__(self) -> None:
        check_codec(self.codec)
        check_seconds(self, "invisible_seconds", "renew_seconds")
        check_bool(self, "orderly")
        check_count(self, "batch_size", most=MAX_POP)
        check_seconds(self, "wait_seconds", least=0)
        check_count(self, "max_reconsume_times", least=0)
        check_choice(self, "start_from", get_args(StartFrom))
