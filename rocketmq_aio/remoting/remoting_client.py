"""Remoting client: one connection per address, opened on demand, reopened with backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine
from typing import Any, Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.errors import ClosedError, NotConnectedError, RocketMQError
from rocketmq_aio.hooks import RPCHook
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.address import has_port
from rocketmq_aio.protocol.codes import CLIENT_VERSION, ONEWAY_FLAG, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.decoding import decoder_of
from rocketmq_aio.protocol.header import RequestHeader, to_ext_fields
from rocketmq_aio.protocol.namespaces import namespace_fields, namespace_of
from rocketmq_aio.remoting.acl import current_credentials, sign
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.backoff import NO_MASTER_SECONDS, Backoff, BackoffError, NoMasterError
from rocketmq_aio.remoting.connection import RETIRED, Connection, Frame, MakeFrame, OnLate
from rocketmq_aio.remoting.dial import Dialer, failure_reason
from rocketmq_aio.remoting.failure_log import FailureLog
from rocketmq_aio.remoting.fork import FORKED
from rocketmq_aio.remoting.inbound_requests import InboundRequests, RequestHandler
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

SUCCESS: Final = (ResponseCode.SUCCESS,)
# How long a broker may still execute a request without a response: it is sent again by the system
# after a cut, until that gives up the connection, or waits where the broker has not read it.
LATE_SECONDS: Final = 30.0


class RemotingClient:
    """Sends requests to addresses and serves the requests of the peers.

    During the backoff of an unreachable address calls fail at once with `NotConnectedError`, so
    that the caller can use another broker.

    :param tasks: runs the connection attempts and the workers for inbound requests
    :param on_request: handles requests of brokers: (address, command) -> reply, None for oneway
    :param on_connected: called with the address of each new connection
    :param on_unreachable: called with the address when a connection is lost, an attempt fails or
        requests time out
    :param advice: returns what the user can do if an address is unreachable, or ""
    """

    def __init__(
        self,
        config: ClientConfig,
        tasks: BackgroundTasks,
        *,
        on_request: RequestHandler,
        on_connected: Callable[[str], None],
        on_unreachable: Callable[[str], None],
        advice: Callable[[str], str],
    ) -> None:
        self._config = config
        self._tasks = tasks
        self.server = InboundRequests(config, tasks, on_request)
        # Handlers of the application may take long, and may wait for what a broker sends, such as
        # the reply to a request: other requests do not wait for them.
        self._direct_consumptions = InboundRequests(config, tasks, on_request)
        self._on_connected = on_connected
        self._on_unreachable = on_unreachable
        self._advice = advice
        self._connections: dict[str, Connection] = {}
        self._retiring: set[Connection] = set()
        self._opening: dict[str, asyncio.Future[Connection]] = {}
        self._backoff: dict[str, Backoff] = {}
        self._retry_at: dict[str, tuple[float, str]] = {}
        self._closed = ""  # why, once it is
        self._dialer = Dialer(config)
        self._hook_failures = FailureLog(logger.error, "rpc_hook_failed")
        self.namespace = namespace_of(config)
        self.decode = decoder_of(config)
        self._namespace_fields = namespace_fields(config)
        # Prepared frames are binary; they bypass signatures, hooks and namespaces.
        self.takes_prepared = (
            config.credentials is None
            and self.namespace is None
            and not self._namespace_fields
            and not config.rpc_hooks
            and config.header_encoding == "rocketmq"
        )

    def start(self) -> None:
        """Start to serve requests of brokers."""
        self.server.start()
        self._direct_consumptions.start("direct-consumptions")

    def close(self, reason: str = "the client was closed") -> None:
        """Close every connection; unanswered requests fail with *reason*."""
        self._closed = self._closed or reason
        for connection in [*self._connections.values(), *self._retiring]:
            connection.abort(self._closed, closed=True)
        for opening in self._opening.values():
            if not opening.done():
                opening.set_exception(ClosedError(self._closed))

    def check_open(self) -> None:
        """Check that `close` was not called.

        :raises ClosedError: it was
        """
        if self._closed:
            raise ClosedError(self._closed)

    def after_fork(self) -> None:
        """In a forked child: drop the connections, which belong to the parent."""
        self._closed = f"the client {FORKED}"
        for connection in [*self._connections.values(), *self._retiring]:
            connection.after_fork(self._closed)
        self._connections.clear()
        self._retiring.clear()
        self._opening.clear()

    # --- requests -------------------------------------------------------------------------------

    async def request(
        self,
        address: str,
        header: RequestHeader,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        version: int = CLIENT_VERSION,
        on_late: OnLate | None = None,
    ) -> Command:
        """Send a request and return the response, whatever its code.

        :param timeout: default ``request_timeout_seconds``
        :param on_late: called with a response that arrives after the timeout or a cancellation;
            must not block or raise
        :raises NotConnectedError: it was not sent
        :raises ConnectionLostError: it was sent, and the connection was lost
        :raises RequestTimeoutError: no response within *timeout* seconds
        """

        def frame(opaque: int) -> Frame:
            return self._frame(address, header, body, opaque, 0, version), b""

        seconds = self._config.request_timeout_seconds if timeout is None else timeout
        command = await self.exchange(address, int(header.code), frame, seconds, on_late)
        if self.namespace is not None:
            self.namespace.response(int(header.code), command)
        if self._config.rpc_hooks:
            self._run_response_hooks(address, int(header.code), command)
        return command

    async def request_checked(
        self,
        address: str,
        header: RequestHeader,
        body: bytes = b"",
        *,
        accept: Container[int] = SUCCESS,
        timeout: float | None = None,
        version: int = CLIENT_VERSION,
    ) -> Command:
        """Send a request and return the response; errors as `request`.

        :raises BrokerError: the response code is not one of *accept*
        """
        command = await self.request(address, header, body, timeout=timeout, version=version)
        if command.code not in accept:
            raise broker_error(command, address)
        return command

    def exchange(
        self,
        address: str,
        code: int,
        frame: MakeFrame,
        timeout: float,
        on_late: OnLate | None = None,
    ) -> Coroutine[Any, Any, Command]:
        """Send the frame that *frame* makes for an opaque: `request` without the encoding."""
        connection = self._connections.get(address)
        if connection is not None and connection.usable:
            # Not a coroutine: this saves one call per request.
            return connection.roundtrip(code, frame, timeout, on_late=on_late)
        return self._connect_and_exchange(address, code, frame, timeout, on_late)

    async def _connect_and_exchange(
        self, address: str, code: int, frame: MakeFrame, timeout: float, on_late: OnLate | None
    ) -> Command:
        connection, left = await self._connected_within(address, timeout)
        return await connection.roundtrip(code, frame, left, on_late=on_late)

    async def oneway(
        self,
        address: str,
        header: RequestHeader,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> None:
        """Send a oneway request; NotConnectedError if it was not sent.

        :param timeout: default ``request_timeout_seconds``
        """
        seconds = self._config.request_timeout_seconds if timeout is None else timeout
        connection, left = await self._connected_within(address, seconds)
        opaque = connection.next_opaque()
        frame = self._frame(address, header, body, opaque, ONEWAY_FLAG, CLIENT_VERSION)
        await connection.send_oneway(int(header.code), (frame, b""), left)

    def is_connected(self, address: str) -> bool:
        """Whether there is a usable connection to *address*."""
        connection = self._connections.get(address)
        return connection is not None and connection.usable

    def received_since(self, address: str, since: float) -> bool:
        """Whether *address* sent anything after *since*, over the current connection."""
        connection = self._connections.get(address)
        return connection is not None and connection.usable and connection.received_since(since)

    def backoff_left(self, address: str) -> float:
        """Return for how many seconds requests to *address* will fail without an attempt."""
        if not has_port(address):
            return NO_MASTER_SECONDS
        until, _ = self._retry_at.get(address, (0.0, ""))
        return max(0.0, until - asyncio.get_running_loop().time())

    def forget(self, addresses: set[str]) -> None:
        """Close the connections to *addresses*, and reset their backoff."""
        for address in addresses:
            self._retry_at.pop(address, None)
            self._backoff.pop(address, None)
            if (connection := self._connections.get(address)) is not None:
                self._retire(connection)

    def drop(self, address: str, reason: str) -> None:
        """Close the connection to *address* at once; unanswered requests fail with *reason*."""
        if (connection := self._connections.get(address)) is not None:
            connection.abort(reason)

    def retain(self, addresses: set[str]) -> None:
        """Forget every address but *addresses*."""
        self.forget({*self._connections, *self._retry_at} - addresses)

    def share(self, topic: str) -> None:
        """Send *topic* as it is, with a namespace, too: see `Namespace.share`."""
        if self.namespace is not None:
            self.namespace.share(topic)

    def _frame(
        self, address: str, header: RequestHeader, body: bytes, opaque: int, flag: int, version: int
    ) -> bytes:
        ext = to_ext_fields(header)
        code = int(header.code)
        if self.namespace is not None:
            body = self.namespace.request(code, ext, body)
        ext.update(self._namespace_fields)
        for hook in self._config.rpc_hooks:
            ext = self._run_request_hook(hook, address, code, ext, body)
        if (given := self._config.credentials) is not None:
            credentials = current_credentials(given, address)
            unsigned = {name: ext.pop(name) for name in header.unsigned if name in ext}
            sign(ext, body, credentials)
            ext.update(unsigned)
        command = Command(code, opaque, flag, body=body)
        binary = self._config.header_encoding == "rocketmq"
        return encode_command(command, ext, binary=binary, version=version)

    def _run_request_hook(
        self, hook: RPCHook, address: str, code: int, ext: dict[str, str], body: bytes
    ) -> dict[str, str]:
        """Return *ext* as changed by *hook*; unchanged if the hook fails."""
        changed = dict(ext)
        try:
            hook.before_request(address, code, changed, body)
            "".join(map("".join, changed.items())).encode()  # raises for what is not valid text
        except APPLICATION_ERRORS as error:
            self._hook_failures.log_once(id(hook), error, hook=type(hook).__qualname__)
            return ext
        return changed

    def _run_response_hooks(self, address: str, code: int, command: Command) -> None:
        for hook in self._config.rpc_hooks:
            try:
                hook.after_response(address, code, command.code, dict(command.ext_fields()))
            except APPLICATION_ERRORS as error:
                self._hook_failures.log_once(id(hook), error, hook=type(hook).__qualname__)

    async def _resend(
        self,
        retired: Connection,
        code: int,
        frame: MakeFrame,
        timeout: float,
        on_late: OnLate | None,
    ) -> Command:
        """Resend once over a new connection after GO_AWAY, sent by brokers that shut down."""
        self._retire(retired)
        if timeout <= 0:
            reason = "it is shutting down (GO_AWAY), and no time was left to send it once more"
            raise NotConnectedError(retired.address, reason)
        connection, left = await self._connected_within(retired.address, timeout)
        command = await connection.roundtrip(code, frame, left, may_move=False, on_late=on_late)
        if command.code == ResponseCode.GO_AWAY:
            self._retire(connection)
            reason = "it is shutting down (GO_AWAY twice)"
            self._count_failure(retired.address, reason)  # else every call would reconnect
            raise NotConnectedError(retired.address, reason)
        return command

    def _retire(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if connection.loss is None:
            self._retiring.add(connection)
        connection.retire()

    # --- connecting -----------------------------------------------------------------------------

    async def _connected_within(self, address: str, timeout: float) -> tuple[Connection, float]:
        """Return a usable connection, and the rest of *timeout*."""
        connection = self._connections.get(address)
        if connection is not None and connection.usable:
            return connection, timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                connection = await asyncio.shield(self._open(address))
                while connection.loss is RETIRED:  # forgotten before this task ran
                    connection = await asyncio.shield(self._open(address))
            if (left := deadline - loop.time()) <= 0:
                raise TimeoutError
        except TimeoutError:
            reason = f"not connected within {max(0.0, timeout):.3g} s"
            raise NotConnectedError(address, reason) from None
        except (NotConnectedError, ClosedError) as error:
            # Shared by all callers: each raise would lengthen its traceback.
            raise error.with_traceback(None) from error.__cause__
        return connection, left

    def _open(self, address: str) -> asyncio.Future[Connection]:
        """Return the pending connection attempt, or start one."""
        self.check_open()
        if not has_port(address):
            raise NoMasterError(address)
        if (opening := self._opening.get(address)) is not None:
            return opening
        loop = asyncio.get_running_loop()
        if (wait := self.backoff_left(address)) > 0:
            _, reason = self._retry_at[address]
            raise BackoffError(address, f"{reason}; next attempt in {wait:.1f} s")
        attempt: asyncio.Future[Connection] = loop.create_future()
        attempt.add_done_callback(_retrieve)
        self._opening[address] = attempt
        self._tasks.spawn(self._connect, address, attempt, name=f"connect-{address}")
        return attempt

    async def _connect(self, address: str, attempt: asyncio.Future[Connection]) -> None:
        try:
            connection = await self._dialer.dial(address, lambda: self._new_connection(address))
        except (OSError, ValueError, RocketMQError) as error:
            reason, advice = failure_reason(error), self._advice(address)
            self._fail(attempt, address, f"{reason}; {advice}" if advice else reason, error)
        else:
            self._accept(address, connection, attempt)
        finally:
            self._opening.pop(address, None)
            if not attempt.done():  # cancelled: the client closes
                attempt.set_exception(ClosedError(self._closed or "the client ends"))

    def _fail(
        self,
        attempt: asyncio.Future[Connection],
        address: str,
        reason: str,
        cause: BaseException | None = None,
    ) -> None:
        self._count_failure(address, reason)
        if not attempt.done():
            failure = NotConnectedError(address, reason)
            failure.__cause__ = cause
            attempt.set_exception(failure)

    def _receive(self, connection: Connection, command: Command, size: int) -> None:
        is_direct = command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY
        (self._direct_consumptions if is_direct else self.server).receive(connection, command, size)

    def _new_connection(self, address: str) -> Connection:
        return Connection(
            address,
            on_request=self._receive,
            on_lost=self._lost,
            on_timeout=self._on_unreachable,
            on_go_away=self._resend,
            max_in_flight=self._config.max_in_flight,
            max_frame_bytes=self._config.max_frame_bytes,
        )

    def _accept(
        self, address: str, connection: Connection, attempt: asyncio.Future[Connection]
    ) -> None:
        if self._closed:
            connection.abort(self._closed, closed=True)
            return
        if connection.loss is not None:  # the peer closed before this task ran
            self._fail(attempt, address, connection.loss)
            return
        self._connections[address] = connection
        if not attempt.done():
            attempt.set_result(connection)
        self._on_connected(address)

    def _lost(self, connection: Connection) -> None:
        self._retiring.discard(connection)
        address = connection.address
        if self._connections.get(address) is not connection:
            return
        del self._connections[address]
        if self._closed:
            return
        logger.info("connection_lost", address=address, reason=connection.loss)
        if connection.received_any:
            self._backoff.pop(address, None)  # it worked: start over with the shortest backoff
            self._on_unreachable(address)
        else:
            self._count_failure(address, connection.loss or "lost")

    def _count_failure(self, address: str, reason: str) -> None:
        pause = self._backoff.setdefault(address, Backoff()).next_pause()
        self._retry_at[address] = (asyncio.get_running_loop().time() + pause, reason)
        self._on_unreachable(address)


def _retrieve(attempt: asyncio.Future[Connection]) -> None:
    """Retrieve the outcome: every caller may have been cancelled."""
    if not attempt.cancelled():
        attempt.exception()
