"""Inbound requests: a bounded queue of broker requests and its workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import NotConnectedError, NotSupportedError, shown, text_of
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.codes import RESPONSE_FLAG, ResponseCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.connection import Connection
from rocketmq_aio.remoting.failure_log import FailureLog
from rocketmq_aio.remoting.waiters import WaiterQueue

logger = get_logger(__name__)

Reply = tuple[int, str | None, bytes]  # response code, remark, body
RequestHandler = Callable[[str, Command], Awaitable[Reply | None]]

WORKERS: Final = 4
# Further ones are dropped.  A broker checks thousands of transactions at once, and more arrive in
# a turn of the loop than are served.
MAX_QUEUED: Final = 10_000
MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024  # of their headers and bodies; the same
DROPS_LOGGED_SECONDS: Final = 10.0  # between two log events about dropped requests
STREAK: Final = 16  # served in a row: a broker blocks a thread until its pushed reply is answered


class InboundRequests:
    """Calls *handle* for the requests of brokers: (address, command) -> reply, None for oneway.

    An exception becomes a reply: "not supported", or a system error with its text.
    """

    def __init__(
        self, config: ClientConfig, tasks: BackgroundTasks, handle: RequestHandler
    ) -> None:
        self._timeout = config.request_timeout_seconds
        self._tasks = tasks
        self._handle = handle
        self._requests: deque[tuple[Connection, Command, int]] = deque()  # with its bytes
        self._queued_bytes = 0
        self._idle = WaiterQueue()
        self.dropped = 0
        self._log_drops_at = 0.0
        self._failures = FailureLog(logger.warning, "broker_request_failed")

    def start(self, name: str = "broker-requests") -> None:
        """Start the workers, tasks called *name*."""
        for number in range(WORKERS):
            self._tasks.spawn(self._serve, name=f"{name}-{number}")

    def receive(self, connection: Connection, command: Command, size: int) -> None:
        """Queue a request of *size* bytes; never blocks."""
        queued_bytes = self._queued_bytes + size
        if len(self._requests) >= MAX_QUEUED or queued_bytes > MAX_QUEUED_BYTES:
            self._drop(connection, command)
            return
        self._queued_bytes = queued_bytes
        self._requests.append((connection, command, size))
        self._idle.wake_one()

    def _drop(self, connection: Connection, command: Command) -> None:
        self.dropped += 1
        now = asyncio.get_running_loop().time()
        if now >= self._log_drops_at:
            self._log_drops_at = now + DROPS_LOGGED_SECONDS
            logger.warning(
                "broker_requests_dropped",
                address=connection.address,
                code=command.code,
                dropped=self.dropped,
            )

    async def _serve(self) -> None:
        while True:
            while self._requests:
                connection, command, size = self._requests.popleft()
                self._queued_bytes -= size
                await self._serve_one(connection, command)
                if not len(self._requests) % STREAK:
                    await asyncio.sleep(0)  # a flood of requests must not starve heartbeats
            await self._idle.wait()

    async def _serve_one(self, connection: Connection, command: Command) -> None:
        try:
            reply = await self._handle(connection.address, command)
        except Exception as error:  # noqa: BLE001 - the broker gets a reply to every request
            if not isinstance(error, NotSupportedError):
                self._failures.log_once(command.code, error, code=command.code)
            reply = error_reply(error)
        if reply is None or command.is_oneway:
            return
        frame = reply_frame(command, reply)
        try:
            await connection.send_oneway(command.code, (frame, b""), self._timeout)
        except NotConnectedError as error:
            logger.info("response_not_sent", code=command.code, reason=error.reason)


def error_reply(error: Exception) -> Reply:
    """Return the reply to a request that failed.

    The text of *error* is shortened: it may quote the request, and would not fit a header.
    """
    if isinstance(error, NotSupportedError):
        return ResponseCode.REQUEST_CODE_NOT_SUPPORTED, shown(error.remark), b""
    return ResponseCode.SYSTEM_ERROR, shown(text_of(error)), b""


def reply_frame(command: Command, reply: Reply) -> bytes:
    """Return the frame of *reply* to *command*."""
    code, remark, body = reply
    response = Command(int(code), command.opaque, RESPONSE_FLAG, remark, body=body)
    return encode_command(response, {})
