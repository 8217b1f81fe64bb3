"""Message decoders, chosen by the settings of a client."""

from __future__ import annotations

from typing import Protocol

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.compression import MAX_INFLATED
from rocketmq_aio.protocol.namespaces import namespace_of
from rocketmq_aio.protocol.record import Decoded as Decoded, checksum_fault, decode_messages


class Decode(Protocol):
    """Decodes the messages of a response; see `decode_messages`."""

    def __call__(
        self, data: bytes, queue: MessageQueue, /, *, limit: int = MAX_INFLATED
    ) -> Decoded: ...


def decoder_of(config: ClientConfig) -> Decode:
    """Return the decoder for *config*: `decode_messages`, with namespace and checksums."""
    namespace = namespace_of(config)
    decode = decode_messages if namespace is None else namespace.decode
    return verifying(decode) if config.verify_checksums else decode


def verifying(decode: Decode) -> Decode:
    """Return a decoder that stops at the first message with a wrong checksum."""

    def decode_and_verify(
        data: bytes, queue: MessageQueue, *, limit: int = MAX_INFLATED
    ) -> Decoded:
        messages, fault = decode(data, queue, limit=limit)
        for index, message in enumerate(messages):
            if (wrong := checksum_fault(message)) is not None:
                return messages[:index], wrong
        return messages, fault

    return decode_and_verify
