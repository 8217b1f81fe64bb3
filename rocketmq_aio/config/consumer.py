"""LitePullConfig, PushConfig, PopConfig and OffsetStore: settings of consumers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, Literal, Protocol, TypeAlias

from rocketmq_aio.config.validation import MIB, bounded, check_function, check_settings, settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.codec import Codec, V, check_codec
from rocketmq_aio.model.names import check_topic
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
MAX_PULL: Final = 1024  # messages per pull
MAX_POP: Final = 32
# Messages expire on their way otherwise: each pop would use up one of their deliveries.
LEAST_INVISIBLE: Final = 0.01


class OffsetStore(Protocol):
    """Stores, per queue, the offset of the next message to consume.

    Implement it to keep offsets in a database, and pass it as ``offset_store=``.  A store serves
    one group in one consumer.  The consumer calls `load` first, once; later calls may overlap,
    also for the same queue, and may be cancelled.  All messages below an offset are processed.

    Raise `RocketMQError` (wrap the driver's exceptions) for failures to be retried; any other
    exception counts as a bug and stops the consumer.
    """

    async def load(self) -> None:
        """Prepare the store: connect, or read a file.

        :raises RocketMQError: it failed; the consumer does not start
        """

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of *queue*; an `update` not yet persisted overrides the stored one.

        None means that no offset is stored: the consumer starts at ``start_from``.  If the offset
        cannot be read, raise instead.

        :raises RocketMQError: the offset cannot be read now; the consumer retries
        """

    async def update(self, queue: MessageQueue, offset: int) -> None:
        """Record, in memory or durably, that all messages below *offset* are processed.

        The offset may decrease, after a seek.
        """

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Make the last `update` of each of *queues* durable before returning.

        Queues without a new update cost nothing.  Called every few seconds, before a queue is
        revoked, and on close.

        :raises CommitError: some failed, the others are durable; ``lost`` maps the failed queues
            to causes, and the next call retries them
        """

    async def remove(self, queue: MessageQueue) -> None:
        """Forget the unpersisted state of *queue*, which was revoked; durable state stays."""


@settings
class ConsumerConfig(Generic[V]):
    """Settings of all consumers that pull.

    :param message_model: ``CLUSTERING``: members share the queues; ``BROADCASTING``: each member
        receives all messages
    :param start_from: start position of a new group: ``"latest"``, ``"earliest"`` or an aware
        datetime; a queue added to a topic later is read from its beginning
    :param pull_batch_size: messages per pull (brokers return at most 32 by default)
    :param pull_threshold_per_queue: messages cached per queue before pulling pauses
    :param pull_threshold_bytes_per_queue: bytes of their bodies, likewise
    :param max_span: offsets between the first and last cached message of a queue
    :param allocate: ``(client_id, queues, client_ids) -> queues``, or a mapping of topics to such
        functions; default, and for topics not in the mapping: `AllocateAveragely`
    :param offset_store: where offsets are stored; None: at the broker (clustering) or in a local
        file (broadcasting)
    :param offset_illegal: what to do when the broker rejects an offset: ``"broker"`` (use its
        correction), ``"earliest"``, ``"latest"`` or ``"error"``
    :param unreadable: what to do with a stored message that is damaged, or compressed by a library
        that is not installed: ``"hold"`` its queue and retry, or ``"skip"`` it
    :param long_poll_seconds: how long a broker holds a pull that finds no message
    :param rebalance_interval_seconds: interval of rebalancing without a notification of a change
    :param codec: decodes bodies to `MessageExt.value`, such as ``JSONCodec(Order)``
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
        check_settings(self)
        check_codec(self.codec)
        if not isinstance(self.message_model, MessageModel):
            raise ConfigError("message_model", self.message_model, "expected a MessageModel")
        _check_start_from(self.start_from)
        _check_allocate(self.allocate)
        _check_offset_store(self.offset_store)


@settings
class LitePullConfig(ConsumerConfig[V]):
    """Settings of `LitePullConsumer`.

    :param auto_commit: every *commit_interval_seconds*, commit what earlier polls returned; with
        False only `LitePullConsumer.commit` does
    :param pull_threshold_total: messages cached over all queues before pulling pauses
    :param pull_threshold_bytes_total: bytes of bodies cached over all queues, likewise
    :param topic_check_interval_seconds: interval of the checks for topic queue listeners
    """

    auto_commit: bool = True
    commit_interval_seconds: float = 5.0
    pull_threshold_total: int = 10_000
    pull_threshold_bytes_total: int = 256 * MIB
    topic_check_interval_seconds: float = 30.0


@settings
class PushConfig(ConsumerConfig[V]):
    """Settings of `PushConsumer`.

    :param concurrency: handlers that run concurrently; ``consumer.set_concurrency`` changes it
    :param consume_batch_size: messages of one queue given to ``on_batch`` at once
    :param max_reconsume_times: retries before a message becomes a dead letter; None is 16, and
        for orderly consumption no limit
    :param consume_timeout_seconds: handler timeout; the handler is cancelled, the message retried
    :param suspend_seconds: pause of a queue before an orderly handler retries a failed message
    :param pull_interval_seconds: pause between two pulls of a queue
    :param pull_threshold_per_topic: messages cached over all assigned queues of a topic, divided
        among them; None: only the thresholds per queue apply
    :param pull_threshold_bytes_per_topic: bytes of bodies, likewise
    :param commit_interval_seconds: interval of commits
    :param close_timeout_seconds: how long running handlers may continue when a queue is revoked or
        the consumer closes
    :param stuck_seconds: run time of a handler after which `HandlerStuck` is emitted
    :param client_rebalance: False: the broker (5.x) assigns the queues and chooses between pulling
        and popping
    :param pop_invisible_seconds: how long a popped message stays invisible
    :param pop_batch_size: messages per pop
    :param pop_threshold_per_queue: unacknowledged popped messages before popping pauses
    :param undecodable: what to do with a message that *codec* cannot decode: ``"retry"`` it as if
        the handler had failed, send it to the ``"dead_letter"`` topic, or ``"skip"`` it
    """

    concurrency: int = bounded(default=20, most=MAX_CONCURRENCY)
    consume_batch_size: int = bounded(default=1, most=MAX_PULL)
    max_reconsume_times: int | None = bounded(default=None, least=0)
    consume_timeout_seconds: float = 900.0
    suspend_seconds: float = 1.0
    pull_interval_seconds: float = bounded(default=0.0, least=0)
    pull_threshold_per_topic: int | None = None
    pull_threshold_bytes_per_topic: int | None = None
    commit_interval_seconds: float = 5.0
    close_timeout_seconds: float = bounded(default=10.0, least=0)
    stuck_seconds: float = 60.0
    client_rebalance: bool = True
    pop_invisible_seconds: float = bounded(default=60.0, least=5, most=300)  # as in Java
    pop_batch_size: int = bounded(default=32, most=MAX_POP)
    pop_threshold_per_queue: int = 96
    undecodable: UndecodablePolicy = "retry"


@settings
class PopConfig(Generic[V]):
    """Settings of `PopConsumer`.

    :param invisible_seconds: how long a popped message stays invisible; at least 0.01
    :param batch_size: default of ``max_messages`` in ``receive``, at most 32
    :param wait_seconds: how long a broker may hold a request that finds no message
    :param max_reconsume_times: redeliveries before a message goes to the dead-letter topic
    :param start_from: start position of a new group: ``"earliest"``, or ``"latest"``: at the last
        message of each queue; a young queue is read from its beginning in both cases
    :param orderly: deliver the messages of a queue in order, one batch at a time
    :param renew_seconds: how long ``async for`` renews the invisible time of a message in its body
        at most; messages that wait for the next iterations are renewed, too
    :param codec: decodes bodies to `MessageExt.value`, such as ``JSONCodec(Order)``
    """

    invisible_seconds: float = bounded(default=60.0, least=LEAST_INVISIBLE)
    batch_size: int = bounded(default=32, most=MAX_POP)
    wait_seconds: float = bounded(default=15.0, least=0)
    max_reconsume_times: int = bounded(default=16, least=0)
    start_from: StartFrom = "latest"
    orderly: bool = False
    renew_seconds: float = 900.0
    codec: Codec[V] | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        check_codec(self.codec)


def _check_allocate(choice: object) -> None:
    if isinstance(choice, Mapping):
        for topic, strategy in choice.items():
            check_topic(topic, setting="allocate")
            check_strategy("allocate", strategy, f"expected a callable for {topic!r}")
    elif choice is not None:
        check_strategy("allocate", choice, "expected a callable, or a mapping of topic to such")


def check_strategy(setting: str, strategy: object, expected: str) -> None:
    """Check that *strategy* can be called as an `AllocateStrategy`.

    :raises ConfigError: it cannot; the error says what is *expected*
    """
    if not callable(strategy):
        raise ConfigError(setting, strategy, expected)
    if isinstance(strategy, type):
        name = strategy.__name__
        raise ConfigError(setting, strategy, f"expected an object, such as {name}(...)")
    arguments = "client_id", "queues", "client_ids"
    check_function(setting, strategy, *arguments, may_be_async=False, may_yield=True)


def _check_offset_store(store: object) -> None:
    if store is None:
        return
    methods = [name for name in vars(OffsetStore) if not name.startswith("_")]
    if isinstance(store, type) or not all(callable(getattr(store, name, None)) for name in methods):
        reason = f"expected an object with the methods {', '.join(methods)}"
        raise ConfigError("offset_store", store, reason)


def _check_start_from(start: object) -> None:
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            raise ConfigError("start_from", start, "the datetime needs a time zone")
    elif start not in ("latest", "earliest"):
        raise ConfigError("start_from", start, 'expected "latest", "earliest" or a datetime')
