"""Recorder of the frames of a server, for tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier
from rocketmq_aio.protocol.command import Command

MAX_RECORDS: Final = 100_000
UNKNOWN: Final = -1  # request code of a response to no known request


@dataclass(frozen=True, slots=True)
class WireFrame:
    """A recorded frame; *request_code* is that of the request or of the answered request."""

    at: float
    connection: int
    sent: bool  # by the server
    encoding: int
    command: Command
    request_code: int


class Recorder:
    """Frames that a server received and sent, and the times of new connections.

    :param limit: frames to keep, the newest
    """

    def __init__(self, limit: int = MAX_RECORDS) -> None:
        self.wire: list[WireFrame] = []
        self.connects: list[float] = []
        self._limit = limit
        self._counts: Counter[int] = Counter()
        self._changed = Notifier()

    @property
    def requests(self) -> list[WireFrame]:
        """Requests of clients in the order of arrival."""
        return [frame for frame in self.wire if not frame.sent and not frame.command.is_response]

    def requests_of(self, code: int) -> list[Command]:
        return [frame.command for frame in self.requests if frame.command.code == code]

    async def wait_for(
        self, code: int, count: int = 1, seconds: float = WAIT_SECONDS
    ) -> list[Command]:
        """Wait for *count* requests of *code*; return all since the start."""
        what = f"{count} request(s) of code {code}"
        await self._changed.until(lambda: self._counts[code] >= count, what, seconds)
        return self.requests_of(code)

    def connected(self) -> None:
        self.connects.append(asyncio.get_running_loop().time())
        _trim(self.connects, self._limit)

    def received(self, connection: int, encoding: int, command: Command) -> None:
        code = command.code
        if command.is_response:
            code = self._pushed_code(connection, command.opaque)
        else:
            self._counts[code] += 1
        self.add(connection, encoding, command, code, sent=False)
        self._changed.notify()

    def add(
        self, connection: int, encoding: int, command: Command, request_code: int, *, sent: bool
    ) -> None:
        self.wire.append(
            WireFrame(
                asyncio.get_running_loop().time(), connection, sent, encoding, command, request_code
            )
        )
        _trim(self.wire, self._limit)

    def _pushed_code(self, connection: int, opaque: int) -> int:
        """Return the code of the server's request *opaque*."""
        for frame in reversed(self.wire):
            pushed = frame.sent and not frame.command.is_response
            if pushed and (frame.connection, frame.command.opaque) == (connection, opaque):
                return frame.request_code
        return UNKNOWN


def _trim(records: list[WireFrame] | list[float], limit: int) -> None:
    """Delete the oldest quarter of a full list."""
    if len(records) > limit:
        del records[: limit // 4 + 1]
