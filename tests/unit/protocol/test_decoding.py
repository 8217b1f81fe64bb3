"""Message decoders: namespaces and checksums by the settings of a client."""

from __future__ import annotations

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import BORN_IPV6, COMPRESSED, INNER_BATCH, NEED_UNWRAP
from rocketmq_aio.protocol.compression import compress
from rocketmq_aio.protocol.decoding import decoder_of
from rocketmq_aio.protocol.record import IPV4_HEAD, decode_messages
from tests.unit.stored import Stored, batch_entry

pytestmark = pytest.mark.usefixtures("each_core")

QUEUE = MessageQueue("orders", "broker-a", 3)
VERIFYING = ClientConfig(verify_checksums=True)
CRC = slice(8, 12)


def altered(record: Stored, at: int = IPV4_HEAD) -> bytes:
    """Return *record* with a bit of its body flipped."""
    data = bytearray(record.to_bytes())
    data[at] ^= 1
    return bytes(data)


def batch() -> Stored:
    body = batch_entry(b"one") + batch_entry(b"two")
    return Stored(body=body, sys_flag=INNER_BATCH | NEED_UNWRAP)


def compressed() -> Stored:
    return Stored(body=compress(b"large " * 100, "zlib", 5), sys_flag=COMPRESSED)


@pytest.mark.parametrize(
    "record",
    [Stored(), Stored(sys_flag=BORN_IPV6), Stored(body=b""), batch(), compressed()],
    ids=["plain", "ipv6", "empty", "batch", "compressed"],
)
def test_bodies_with_the_right_checksum_are_decoded(record: Stored) -> None:
    plain = decoder_of(ClientConfig())(record.to_bytes(), QUEUE)
    messages, fault = decoder_of(VERIFYING)(record.to_bytes(), QUEUE)

    assert fault is None
    assert [each.body for each in messages] == [each.body for each in plain[0]] != []


def test_a_wrong_checksum_stops_the_decoder() -> None:
    data = Stored().to_bytes() + altered(Stored(queue_offset=8)) + Stored().to_bytes()
    messages, fault = decoder_of(VERIFYING)(data, QUEUE)

    assert [each.queue_offset for each in messages] == [7]
    assert "checksum" in str(fault)
    assert decoder_of(ClientConfig())(data, QUEUE)[1] is None


def test_checksums_are_verified_in_a_namespace() -> None:
    config = ClientConfig(verify_checksums=True, namespace="shop")
    good, bad = Stored(topic=b"shop%orders"), altered(Stored(topic=b"shop%orders"))
    messages, fault = decoder_of(config)(good.to_bytes() + bad, QUEUE)

    assert [each.topic for each in messages] == ["orders"]
    assert "checksum" in str(fault)


@pytest.mark.parametrize("record", [batch(), compressed()], ids=["batch", "compressed"])
def test_checksums_of_compressed_bodies_are_always_verified(record: Stored) -> None:
    # The last byte of the body: what is inside could be read all the same.
    messages, fault = decode_messages(altered(record, IPV4_HEAD + len(record.body) - 1), QUEUE)

    assert messages == []
    assert "checksum" in str(fault)


@pytest.mark.parametrize("record", [Stored(), batch()], ids=["plain", "batch"])
def test_a_checksum_of_zero_is_not_verified(record: Stored) -> None:
    data = bytearray(record.to_bytes())
    data[CRC] = bytes(4)

    assert decoder_of(VERIFYING)(bytes(data), QUEUE)[1] is None
