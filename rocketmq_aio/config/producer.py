"""ProducerConfig and AutoBatch: settings of producers."""

from __future__ import annotations

from importlib import import_module
from typing import Final, Generic, Literal, TypeAlias

from rocketmq_aio.config.validation import MIB, bounded, check_settings, settings
from rocketmq_aio.errors import ConfigError, missing_extra
from rocketmq_aio.model.codec import Codec, V, check_codec
from rocketmq_aio.model.names import check_topic

Compression: TypeAlias = Literal["zlib", "lz4", "zstd"]
"""How bodies are compressed."""

KIB: Final = 1024
LIBRARIES: Final = {"lz4": "lz4.frame", "zstd": "zstandard"}  # of the extra "compression"
MAX_BATCH_MESSAGES: Final = 1024  # per request: the response has an id for each
MAX_LINGER_SECONDS: Final = 30.0


@settings
class AutoBatch:
    """Concurrent sends to one topic share requests.

    :param linger_seconds: the longest a message waits for others; 0: for one turn of the event loop
    :param max_bytes: bodies and properties per request; a larger message is sent alone
    :param max_messages: messages per request, at most 1024
    """

    linger_seconds: float = bounded(default=0.005, least=0, most=MAX_LINGER_SECONDS)
    max_bytes: int = 128 * KIB
    max_messages: int = bounded(default=256, most=MAX_BATCH_MESSAGES)

    def __post_init__(self) -> None:
        check_settings(self)


@settings
class ProducerConfig(Generic[V]):
    """Settings of a producer.

    :param send_timeout_seconds: deadline of a send, with route lookup, waiting and all attempts
    :param retries: attempts after the first one; unless 0, attempts that a busy broker rejected or
        that could not connect do not count
    :param retry_other_broker: retry on another broker when the message was stored with a weaker
        guarantee than requested (stores a second copy)
    :param compression: ``"zlib"``, ``"lz4"``, ``"zstd"`` or None, for bodies of
        *compress_above_bytes* or more; brokers and clients of 4.9.0 to 4.9.3 read zlib only
    :param compression_level: 1 (fast) to 9 (small)
    :param max_message_bytes: longest body; brokers have a limit of their own, ``maxMessageSize``
    :param max_in_flight: sends in flight; further ones wait
    :param max_in_flight_bytes: bytes of bodies in flight; further sends wait
    :param auto_batch: batch concurrent sends; None sends each message alone
    :param fault_isolation: exclude brokers that fail or are slow for a while
    :param template_topic: topic whose route is used to create a missing topic
    :param template_queues: queues of a topic created by the first send
    :param codec: encodes the bodies of `Producer.send_value`, such as ``JSONCodec(Order)``
    """

    send_timeout_seconds: float = 3.0
    retries: int = bounded(default=2, least=0)
    retry_other_broker: bool = False
    compression: Compression | None = "zlib"
    compress_above_bytes: int = 4096
    compression_level: int = bounded(default=5, most=9)
    max_message_bytes: int = 4 * MIB
    max_in_flight: int = 1024
    max_in_flight_bytes: int = 64 * MIB
    auto_batch: AutoBatch | None = None
    fault_isolation: bool = True
    template_topic: str = "TBW102"
    template_queues: int = 4
    codec: Codec[V] | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        check_codec(self.codec)
        check_topic(self.template_topic, setting="template_topic")
        if self.auto_batch is not None and not isinstance(self.auto_batch, AutoBatch):
            raise ConfigError("auto_batch", self.auto_batch, "expected AutoBatch(...) or None")
        if self.compression in LIBRARIES:
            try:
                import_module(LIBRARIES[self.compression])
            except ImportError as error:
                reason = missing_extra("compression")
                raise ConfigError("compression", self.compression, reason) from error
