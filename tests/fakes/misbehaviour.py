"""Faulty server behaviour, for ``on`` and ``on_connect``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Handler, Outcome, Raw, Response, resolve
from rocketmq_aio.embedded.server import EmbeddedServer
from rocketmq_aio.protocol.command import Command

HTTP_PAGE: Final = Raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", close=True)
# Looks like the start of a frame of 1540 bytes: only a timeout detects it.
GRPC_SETTINGS: Final = Raw(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00")
TWO_GIBIBYTES: Final = Raw(b"\x7f\xff\xff\xff" + bytes(60))
GARBAGE: Final = Raw(bytes(range(255, 127, -1)))
NO_JSON: Final = Raw(b"\x00\x00\x00\x0c\x00\x00\x00\x08not json")

STRANGE_OPAQUE: Final = 0x7FFF_FFF0


def answered_twice(server: EmbeddedServer) -> Handler:
    """Send the default response twice."""
    return _spoiled(server, lambda frame: Raw(frame * 2))


def half_answered(server: EmbeddedServer, *, close: bool = False) -> Handler:
    """Send the first half of the default response, then nothing, or close the connection."""
    return _spoiled(server, lambda frame: Raw(frame[: len(frame) // 2], close=close))


def answered_with_garbage_after(server: EmbeddedServer) -> Handler:
    """Send the default response, then garbage."""
    return _spoiled(server, lambda frame: Raw(frame + GARBAGE.data))


def answered_to_nobody(server: EmbeddedServer, opaque: int = STRANGE_OPAQUE) -> Handler:
    """Execute the request, but respond with an unknown opaque."""

    async def handler(command: Command, connection: ServerConnection) -> Outcome:
        outcome = await resolve(server.process(command, connection))
        assert isinstance(outcome, Response)
        return Raw(server.frame(Command(command.code, opaque), outcome))

    return handler


def unanswered(server: EmbeddedServer) -> Handler:
    """Execute the request and send no response."""

    async def handler(command: Command, connection: ServerConnection) -> Outcome:
        await resolve(server.process(command, connection))
        return None

    return handler


def _spoiled(server: EmbeddedServer, spoil: Callable[[bytes], Raw]) -> Handler:
    async def handler(command: Command, connection: ServerConnection) -> Outcome:
        outcome = await resolve(server.process(command, connection))
        assert isinstance(outcome, Response)
        return spoil(server.frame(command, outcome))

    return handler
