"""Outcomes of requests, and handlers by request code."""

from __future__ import annotations

import inspect
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketmq_aio.protocol.command import Command

if TYPE_CHECKING:
    from rocketmq_aio.embedded.connection import ServerConnection

ANY: Final = -1  # as a code: every request without its own handler


@dataclass(frozen=True, slots=True)
class Response:
    """A response."""

    code: int = 0
    ext: Mapping[str, str] = field(default_factory=dict)
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


Outcome = Response | Raw | Close | None  # None: no response
Handler = Callable[[Command, "ServerConnection"], Outcome | Awaitable[Outcome]]


async def resolve(outcome: Outcome | Awaitable[Outcome]) -> Outcome:
    """Return the outcome of a handler; await it if needed."""
    return await outcome if inspect.isawaitable(outcome) else outcome


class Script:
    """Handlers by request code; those with a limited number of uses come first."""

    def __init__(self) -> None:
        self._limited: dict[int, deque[Handler]] = defaultdict(deque)
        self._kept: dict[int, Handler] = {}

    def add(self, code: int, handler: Handler, times: int | None) -> None:
        if times is None:
            self._kept[code] = handler
        else:
            self._limited[code].extend([handler] * times)

    def remove(self, code: int) -> None:
        self._kept.pop(code, None)
        self._limited.pop(code, None)

    def take(self, code: int) -> Handler | None:
        """Return the handler for the next request of *code*."""
        for key in (code, ANY):
            if self._limited.get(key):
                return self._limited[key].popleft()
            if key in self._kept:
                return self._kept[key]
        return None


def as_handler(what: Handler | Outcome) -> Handler:
    """Return *what* if it is a handler, otherwise a handler that returns it."""
    if callable(what):
        return what
    return lambda _command, _connection: what
