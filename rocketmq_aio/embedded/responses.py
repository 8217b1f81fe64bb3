"""Outcomes of requests, and the handlers that return them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command


class Response(msgspec.Struct, frozen=True):
    """A response of a fault handler: response code, header fields, body, text of an error."""

    code: int = 0
    ext: Mapping[str, str] = {}
    body: bytes = b""
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw bytes; *close* closes the connection afterwards."""

    data: bytes
    close: bool = False


class Close(Exception):  # noqa: N818 - not an error: an outcome, returned or raised
    """Closes the connection; with *reset* the client sees a reset."""

    def __init__(self, *, reset: bool = False) -> None:
        super().__init__(reset)
        self.reset = reset


class ErrorResponse(Exception):  # noqa: N818 - an error response, raised by handlers
    def __init__(
        self, remark: str, code: int = ResponseCode.SYSTEM_ERROR, ext: Mapping[str, str] = {}
    ) -> None:
        super().__init__(code, remark)
        self.response = Response(code, ext, remark=remark)


Outcome = Response | Raw | Close | None  # None: no response
HandlerResult = Outcome | Awaitable[Outcome]
Handler = Callable[[Command, ServerConnection], HandlerResult]


async def resolve(outcome: HandlerResult) -> Outcome:
    """Return the outcome of a handler; await it if needed."""
    return await outcome if inspect.isawaitable(outcome) else outcome


def properties_body(table: Mapping[str, str]) -> bytes:
    """Return settings as servers send them, one per line."""
    return "".join(f"{name}={value}\n" for name, value in sorted(table.items())).encode()
