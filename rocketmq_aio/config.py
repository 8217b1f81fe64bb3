"""Settings: frozen, keyword-only, checked when built; a typo is refused before any connection."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from rocketmq_aio.address import check_namesrv
from rocketmq_aio.auto_batch import AutoBatch
from rocketmq_aio.codec import Codec, check_codec
from rocketmq_aio.credentials import Credentials as Credentials
from rocketmq_aio.environment import bool_from, numbers_from
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import RPCHook
from rocketmq_aio.message import MessageModel
from rocketmq_aio.names import check_client_id_part, check_namespace, check_topic
from rocketmq_aio.settings import (
    check_allocate,
    check_bool,
    check_choice,
    check_count,
    check_installed,
    check_instance,
    check_invisible,
    check_most,
    check_seconds,
    check_start_from,
    settings,
)

if TYPE_CHECKING:  # layers above
    from rocketmq_aio.consumer.offsets.store import OffsetStore
    from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateStrategy

Compression: TypeAlias = Literal["zlib", "lz4", "zstd"]
OffsetPolicy: TypeAlias = Literal["broker", "earliest", "latest", "error"]
UnreadablePolicy: TypeAlias = Literal["hold", "skip"]
UndecodablePolicy: TypeAlias = Literal["retry", "dead_letter", "skip"]
HeaderEncoding: TypeAlias = Literal["json", "rocketmq"]
NamespaceVersion: TypeAlias = Literal[1, 2]
StartFrom: TypeAlias = Literal["latest", "earliest"]

MIB: Final = 1024 * 1024
MIN_FRAME_BYTES: Final = 64 * 1024
LIBRARIES: Final = {"lz4": "lz4.frame", "zstd": "zstandard"}  # of the extra compression
SWITCHES: Final = ("tls", "heartbeat_v2", "unit_mode", "vip_channel", "verify_checksums")
MAX_CONCURRENCY: Final = 1000
MAX_PULL: Final = 1024  # messages that one pull may bring
MAX_POP: Final = 32


@settings
class ClientConfig:
    """What all clients of one process share: where to connect, and how.

    :param namesrv: ``host:port``, several joined by ``;``, or the ``http://`` URL of an address
        server that answers with such a list
    :param tls: True verifies certificate and host name against the system's authorities; an
        ``ssl.SSLContext`` decides for itself
    :param namespace: what all topics and groups belong to; they are named without it everywhere
    :param namespace_version: 1: brokers know names as ``<namespace>%<name>``; 2: requests carry
        the namespace beside the names, for servers that ask for it
    :param instance_name: part of the client id; unique per process and instance by default
    :param unit_name: last part of the client id, and of what an address server is asked for
    :param unit_mode: tells brokers that groups and messages belong to a unit
    :param vip_channel: messages go to the second port of brokers, their own less 2
    :param address_mapper: turns an address that a route advertises into one that is reachable
        from here (containers, tunnels); called with ``host:port``, returns ``host:port``
    :param header_encoding: how request headers are written; both are read everywhere
    :param heartbeat_v2: send short heartbeats to brokers that advertise it (5.1.3 and later)
    :param verify_checksums: compare the body of every message with the checksum it was stored with;
        those of compressed bodies and of inner batches are always compared
    :param max_in_flight: unanswered requests per connection; further calls wait
    """

    namesrv: str | None = None
    credentials: Credentials | None = None
    tls: ssl.SSLContext | bool = False
    namespace: str | None = None
    namespace_version: NamespaceVersion = 1
    instance_name: str | None = None
    unit_name: str | None = None
    unit_mode: bool = False
    vip_channel: bool = False
    address_mapper: Callable[[str], str] | None = None
    rpc_hooks: tuple[RPCHook, ...] = ()
    request_timeout_seconds: float = 3.0
    connect_timeout_seconds: float = 3.0
    heartbeat_interval_seconds: float = 30.0
    route_refresh_interval_seconds: float = 30.0
    namesrv_refresh_interval_seconds: float = 120.0
    heartbeat_v2: bool = False
    header_encoding: HeaderEncoding = "rocketmq"
    verify_checksums: bool = False
    max_in_flight: int = 4096
    max_frame_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        if self.namesrv is not None:
            check_namesrv(self.namesrv)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            raise ConfigError("credentials", "***", "expected Credentials(...)")
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise ConfigError("tls", self.tls, "expected True, False or an ssl.SSLContext")
        if self.address_mapper is not None and not callable(self.address_mapper):
            raise ConfigError("address_mapper", self.address_mapper, "expected a callable")
        if not isinstance(self.rpc_hooks, tuple) or not all(
            isinstance(hook, RPCHook) for hook in self.rpc_hooks
        ):
            raise ConfigError("rpc_hooks", self.rpc_hooks, "expected a tuple of RPCHook objects")
        check_seconds(
            self,
            "request_timeout_seconds",
            "connect_timeout_seconds",
            "heartbeat_interval_seconds",
            "route_refresh_interval_seconds",
            "namesrv_refresh_interval_seconds",
        )
        check_bool(self, "heartbeat_v2", "unit_mode", "vip_channel", "verify_checksums")
        check_choice(self, "header_encoding", get_args(HeaderEncoding))
        check_count(self, "namespace_version")
        check_choice(self, "namespace_version", get_args(NamespaceVersion))
        check_count(self, "max_in_flight")
        check_count(self, "max_frame_bytes", least=MIN_FRAME_BYTES)
        check_client_id_part(self, "instance_name", "unit_name")
        if self.namespace is not None:
            check_namespace(self.namespace)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: object) -> ClientConfig:
        """Read ``ROCKETMQ_*`` variables, then ``NAMESRV_ADDR``; what is *given* wins.

        ``ROCKETMQ_NAMESRV``, ``ROCKETMQ_ACCESS_KEY``, ``ROCKETMQ_SECRET_KEY``,
        ``ROCKETMQ_SECURITY_TOKEN``, ``ROCKETMQ_TLS`` (true or false), ``ROCKETMQ_INSTANCE_NAME``,
        ``ROCKETMQ_UNIT_NAME``, ``ROCKETMQ_NAMESPACE``, and the numbers by their own names, for
        example ``ROCKETMQ_REQUEST_TIMEOUT_SECONDS``.
        A variable that is empty counts as not set.

        :raises ConfigError: a variable holds what its setting does not take
        """
        env = os.environ if environ is None else environ
        found = numbers_from(cls, env)
        if namesrv := env.get("ROCKETMQ_NAMESRV") or env.get("NAMESRV_ADDR"):
            found["namesrv"] = namesrv
        for setting in ("instance_name", "unit_name", "namespace"):
            if name := env.get(f"ROCKETMQ_{setting.upper()}"):
                found[setting] = name
        access_key = env.get("ROCKETMQ_ACCESS_KEY", "")
        secret_key = env.get("ROCKETMQ_SECRET_KEY", "")
        if access_key or secret_key:  # one without the other is refused
            found["credentials"] = Credentials(
                access_key=access_key,
                secret_key=secret_key,
                security_token=env.get("ROCKETMQ_SECURITY_TOKEN") or None,
            )
        for name in SWITCHES:
            if text := env.get(f"ROCKETMQ_{name.upper()}"):
                found[name] = bool_from(f"ROCKETMQ_{name.upper()}", text)
        merged: dict[str, Any] = {**found, **given}
        return cls(**merged)  # unknown names are refused there


@settings
class ProducerConfig:
    """How a producer sends.

    :param send_timeout_seconds: one deadline for the whole send: route, waiting, all attempts
    :param retries: attempts after the first one; while a broker says that it is busy, and so has
        stored nothing, they do not count, unless *retries* is 0
    :param retry_other_broker: try another broker when the message was stored with a weaker
        guarantee than asked for (this makes a second copy)
    :param compression: ``"zlib"``, ``"lz4"``, ``"zstd"`` or None, for bodies of
        *compress_above_bytes* or more; brokers and clients of 4.9.0 to 4.9.3 read zlib only
    :param max_in_flight: unanswered sends; further ones wait
    :param max_in_flight_bytes: bytes of bodies in unanswered sends; further ones wait
    :param auto_batch: lets concurrent sends travel together; None sends each alone
    :param fault_isolation: leave brokers out for a while that do not answer, or slowly
    :param template_topic: whose route tells where a topic that does not exist yet may be created
    :param template_queues: how many queues a topic created by a first send gets
    :param codec: makes the bodies of `Producer.send_value`, such as ``JSONCodec(Order)``
    """

    send_timeout_seconds: float = 3.0
    retries: int = 2
    retry_other_broker: bool = False
    compression: Compression | None = "zlib"
    compress_above_bytes: int = 4096
    compression_level: int = 5
    max_message_bytes: int = 4 * MIB
    max_in_flight: int = 1024
    max_in_flight_bytes: int = 64 * MIB
    auto_batch: AutoBatch | None = None
    fault_isolation: bool = True
    template_topic: str = "TBW102"
    template_queues: int = 4
    codec: Codec | None = None

    def __post_init__(self) -> None:
        check_seconds(self, "send_timeout_seconds")
        check_codec(self.codec)
        check_count(self, "retries", least=0)
        check_bool(self, "retry_other_broker", "fault_isolation")
        check_instance(self, "auto_batch", AutoBatch)
        check_choice(self, "compression", (*get_args(Compression), None))
        check_installed(self, "compression", LIBRARIES)
        check_topic(self.template_topic, setting="template_topic")
        check_count(
            self,
            "compress_above_bytes",
            "max_message_bytes",
            "max_in_flight",
            "max_in_flight_bytes",
            "template_queues",
        )
        check_count(self, "compression_level")
        if self.compression_level > 9:
            raise ConfigError("compression_level", self.compression_level, "expected 1 to 9")


@settings
class ConsumerConfig:
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
    codec: Codec | None = None

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
class LitePullConfig(ConsumerConfig):
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
class PushConfig(ConsumerConfig):
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
        check_count(
            self, "concurrency", "consume_batch_size", "pop_batch_size", "pop_threshold_per_queue"
        )
        check_most(self, "concurrency", MAX_CONCURRENCY)
        check_most(self, "consume_batch_size", MAX_PULL)
        check_most(self, "pop_batch_size", MAX_POP)
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
        check_seconds(self, "pull_interval_seconds", "close_timeout_seconds", zero=True)
        check_invisible(self, "pop_invisible_seconds")


@settings
class PopConfig:
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
    codec: Codec | None = None

    def __post_init__(self) -> None:
        check_codec(self.codec)
        check_seconds(self, "invisible_seconds", "renew_seconds")
        check_bool(self, "orderly")
        check_count(self, "batch_size")
        check_most(self, "batch_size", MAX_POP)
        check_seconds(self, "wait_seconds", zero=True)
        check_count(self, "max_reconsume_times", least=0)
        check_choice(self, "start_from", get_args(StartFrom))
