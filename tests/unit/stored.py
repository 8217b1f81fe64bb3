"""Stored messages and batch entries, encoded by hand from the byte table."""

import zlib
from dataclasses import dataclass

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
IPV4 = bytes([127, 0, 0, 1])
IPV6 = bytes([0x20, 1, 0x0D, 0xB8]) + bytes(11) + b"\x01"
COMPRESSED, BORN_IPV6, STORE_IPV6, NEED_UNWRAP, INNER_BATCH = 0x1, 0x10, 0x20, 0x40, 0x80
INNER = NEED_UNWRAP | INNER_BATCH


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=value < 0)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One record; the lengths follow from the parts unless they are given."""

    body: bytes = b"hello"
    topic: bytes = b"orders"
    properties: bytes = b"TAGS\x01paid\x02UNIQ_KEY\x01ID1\x02"
    queue_offset: int = 7
    flag: int = 0
    sys_flag: int = 0
    magic: int = MAGIC_V1
    born_ms: int = 1_700_000_000_123
    store_ms: int = 1_700_000_000_456
    commit_log_offset: int = 1000
    reconsume_times: int = 0
    size: int | None = None
    body_length: int | None = None
    topic_length: int | None = None
    properties_length: int | None = None

    def to_bytes(self) -> bytes:
        """Return the record."""
        after_size = self._head() + self._tail()
        size = 4 + len(after_size) if self.size is None else self.size
        return number(size, 4) + after_size

    def _head(self) -> bytes:
        born = IPV6 if self.sys_flag & BORN_IPV6 else IPV4
        store = IPV6 if self.sys_flag & STORE_IPV6 else IPV4
        return b"".join(
            [
                number(self.magic, 4),
                number(zlib.crc32(self.body) & 0x7FFFFFFF, 4),
                number(3, 4),  # queue id
                number(self.flag, 4),
                number(self.queue_offset, 8),
                number(self.commit_log_offset, 8),
                number(self.sys_flag, 4),
                number(self.born_ms, 8),
                born + number(50_000, 4),
                number(self.store_ms, 8),
                store + number(10_911, 4),
                number(self.reconsume_times, 4),
                number(0, 8),  # prepared transaction offset
            ]
        )

    def _tail(self) -> bytes:
        return b"".join(
            [
                number(length(self.body, self.body_length), 4),
                self.body,
                number(length(self.topic, self.topic_length), 2 if self.magic == MAGIC_V2 else 1),
                self.topic,
                number(length(self.properties, self.properties_length), 2),
                self.properties,
            ]
        )


def length(part: bytes, said: int | None) -> int:
    return len(part) if said is None else said


def batch_entry(
    body: bytes, properties: bytes = b"", flag: int = 0, size: int | None = None
) -> bytes:
    """Return one entry of a batch body."""
    rest = b"".join(
        [
            bytes(8),
            number(flag, 4),
            number(len(body), 4),
            body,
            number(len(properties), 2),
            properties,
        ]
    )
    return number(4 + len(rest) if size is None else size, 4) + rest
