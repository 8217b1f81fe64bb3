"""Data that is not RocketMQ's, for faults."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.embedded.responses import Raw

HTTP_PAGE: Final = Raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", close=True)
# Looks like the start of a frame of 1540 bytes: only a timeout detects it.
GRPC_SETTINGS: Final = Raw(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00")
TWO_GIBIBYTES: Final = Raw(b"\x7f\xff\xff\xff" + bytes(60))
NO_JSON: Final = Raw(b"\x00\x00\x00\x0c\x00\x00\x00\x08not json")
