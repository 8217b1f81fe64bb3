"""Connection: pipelined requests over one socket, responses matched by opaque.

The hot path.  A caller waits for one future; a request has no lock, task or timer of its own.
Whole frames enter the buffer of the transport in one step, so cancelling a caller cannot leave
half a frame on the wire.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, cast

from rocketmq_aio.errors import (
    ClosedError,
    CodecError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
)
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.codes import RESPONSE_FLAG, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.frame import FrameDecoder
from rocketmq_aio.remoting.waiters import WaiterQueue

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

logger = get_logger(__name__)

RECEIVE_BYTES: Final = 256 * 1024  # one reused buffer: asyncio would allocate one per read
WRITE_HIGH_BYTES: Final = 1024 * 1024  # unsent bytes above this make new requests wait
SWEEP_SECONDS: Final = 0.1  # the delay of timeouts
SILENCE_SECONDS: Final = 10.0  # since the first unanswered request, without a byte either way
UPLOAD_BYTES: Final = 16 * 1024  # unsent; the system of a frozen peer takes small requests
STUCK_FRAME_SECONDS: Final = 4.0  # timeouts and the same incomplete frame
SLOW_LINK_SECONDS: Final = 2.0  # from the last sign of a slow link, such as the next large response
MAX_SLOW_SECONDS: Final = 300.0  # of one frame, and of a request after its timeout
ADMIT_AT_ONCE: Final = 64  # requests admitted between two writes: bounds the bytes copied at once
EARLY_PARTS: Final = 24  # two per frame; fewer do not justify a write
MAX_LATE: Final = 10_000  # responses that callers still expect after their timeout
# Of a member with more queues than ``max_in_flight`` they would wait for long polls, and it would
# lose its queues.  They are few: their callers limit them.
UNLIMITED: Final = frozenset(
    {
        *(RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET),
        *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    }
)
# Of consumers.  On a slow link they wait for large responses, their own or earlier ones.  After a
# timeout, the same would be requested again, behind what still comes: nothing would ever arrive.
# Others fail in time: they are repeated regularly, in rounds that wait for all brokers.
PATIENT: Final = frozenset(
    {
        *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE),
        *(RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE),
        *(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.CONSUMER_SEND_MSG_BACK),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
    }
)
MAX_OPAQUE: Final = 0x7FFF_FFFF
RETIRED: Final = "retired"  # why a connection ended that was unused

# Response, deadline, request code, timeout
Pending = tuple["asyncio.Future[Command]", float, int, float]
Frame = tuple[bytes, bytes]  # head and body
MakeFrame = Callable[[int], Frame]  # for an opaque
OnLate = Callable[[Command], None]
GoAway = Callable[
    ["Connection", int, MakeFrame, float, OnLate | None], Coroutine[Any, Any, Command]
]

# The first frame of an HTTP/2 server is SETTINGS of stream 0; this follows its length in three
# bytes.  In the remoting protocol it would begin a frame without a header.
HTTP2_SETTINGS: Final = b"\x04\0\0\0\0\0"
GRPC: Final = (
    "the peer speaks HTTP/2: this is the gRPC port of a proxy, which serves no remoting clients; "
    "a proxy in local mode has no other, so connect to the name servers of its broker"
)
GO_AWAY: Final = int(ResponseCode.GO_AWAY)


class UnsentClosedError(ClosedError, NotConnectedError):
    """The client was closed before the request was sent."""


class UnansweredClosedError(ClosedError, ConnectionLostError):
    """The client was closed before the response: the broker may have executed the request."""


class Connection(asyncio.BufferedProtocol):
    """Requests and responses over one socket, for concurrent callers.

    :param on_request: called with each request of the peer and the bytes of its header and body;
        must not block or raise
    :param on_lost: called once, when the connection is lost for any reason
    :param on_timeout: called with the address when requests time out
    :param on_go_away: resends a request with the response GO_AWAY
    """

    def __init__(
        self,
        address: str,
        *,
        on_request: Callable[[Connection, Command, int], None],
        on_lost: Callable[[Connection], None],
        on_timeout: Callable[[str], None] | None = None,
        on_go_away: GoAway | None = None,
        max_in_flight: int,
        max_frame_bytes: int,
    ) -> None:
        self.address = address
        self.usable = False  # connected and not retired
        self.loss: str | None = None
        self._is_closed = False  # with its client
        self.stray_replies = 0  # late, duplicate or unknown
        self.received_any = False  # a whole frame
        self._executes_nothing = False  # the peer speaks another protocol
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_timeout = on_timeout
        self._on_go_away = on_go_away
        self._max_in_flight = max_in_flight
        self._decoder = FrameDecoder(self._deliver, max_frame_bytes=max_frame_bytes, recycle=True)
        self._loop = asyncio.get_running_loop()
        self._reads_repeatedly = False
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(b"")  # made once connected: many addresses may be unreachable
        self._pending: dict[int, Pending] = {}
        self._late: OrderedDict[int, OnLate] = OrderedDict()  # by opaque, the oldest first
        self._opaque = 0
        self._out: list[bytes] = []
        self._last_flush = 1  # frames in the last write
        self._flush_due = False
        self._writable: asyncio.Future[None] | None = None
        self._waiters = WaiterQueue()  # callers that wait for room
        self._must_wait = False  # callers are in line, or the peer does not read
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._last_received = self._loop.time()
        self._silent_after = 0.0  # last byte before the last timeout
        self._silent_since = 0.0  # start of the first request after it that timed out
        self._stuck_at: int | None = None  # position of the incomplete frame at the last sweep
        self._stuck_since = 0.0
        self._slow_until = 0.0  # large responses arrive over a slow link
        self._unsent = 0  # bytes at the last sweep
        self._taken_at = 0.0  # when a large request was being sent
        self._swept_at = 0.0

    @property
    def in_flight(self) -> int:
        """The number of unanswered requests."""
        return len(self._pending)

    def received_since(self, since: float) -> bool:
        """Whether the peer sent anything after *since*, by the event loop's clock."""
        return self.received_any and self._last_received > since

    def next_opaque(self) -> int:
        """Return an opaque that no unanswered request has."""
        opaque = (self._opaque + 1) & MAX_OPAQUE
        while opaque in self._pending:
            opaque = (opaque + 1) & MAX_OPAQUE
        self._opaque = opaque
        return opaque

    async def roundtrip(  # noqa: C901 - the hot path stays flat
        self,
        code: int,
        make_frame: MakeFrame,
        timeout: float,
        *,
        may_move: bool = True,
        on_late: OnLate | None = None,
    ) -> Command:
        """Send a frame and return the response, whatever its code.

        After GO_AWAY the request is sent once more, over another connection.  It waits while
        ``max_in_flight`` are unanswered, unless it is one of `UNLIMITED`.

        :param on_late: called with a response that arrives after the timeout or a cancellation;
            must not block or raise
        :raises NotConnectedError: it was not sent
        :raises ConnectionLostError: it was sent, and the connection was lost
        :raises ClosedError: the client was closed; also one of the two others
        :raises RequestTimeoutError: no response within *timeout* seconds; later for one of
            `PATIENT`, while large responses arrive over a slow link
        """
        loop = self._loop
        deadline = loop.time() + timeout
        if (self._must_wait or len(self._pending) >= self._max_in_flight) and (
            code not in UNLIMITED or self._writable is not None
        ):
            await self._wait_for_room(code, deadline, timeout)
        if self.loss is not None:
            raise self._not_sent()
        reply: asyncio.Future[Command] = loop.create_future()
        pending = self._pending
        opaque = (self._opaque + 1) & MAX_OPAQUE
        if opaque in pending:
            opaque = self.next_opaque()
        self._opaque = opaque
        frame = make_frame(opaque)
        # A lone request is written at once.  Concurrent ones are gathered into one write per loop
        # iteration; into several while few are in flight, so that both sides work in parallel.
        out = self._out
        if pending or self._last_flush > 1 or out:
            if not self._flush_due:
                self._flush_due = True
                loop.call_soon(self._flush)
            out += frame
            if (parts := len(out)) >= EARLY_PARTS and parts >= len(pending):  # half of all
                self._write_gathered()
        else:
            self._write(b"".join(frame))
        pending[opaque] = (reply, deadline, code, timeout)
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(SWEEP_SECONDS, self._sweep)
        try:
            command = await reply
        except BaseException:
            pending.pop(opaque, None)  # a later response is dropped, unless there is *on_late*
            if on_late is not None:
                self._expect_late(opaque, on_late, reply)
            if self._must_wait or not self.usable:
                self._wake_waiters()
            raise
        if command.code == GO_AWAY and may_move and self._on_go_away is not None:
            left = deadline - loop.time()
            return await self._on_go_away(self, code, make_frame, left, on_late)
        return command

    async def send_oneway(self, code: int, frame: Frame, timeout: float) -> None:
        """Send *frame* without a response; NotConnectedError if it was not sent."""
        if self._writable is not None:
            await self._wait_for_space(code, timeout)
        if self.loss is not None:
            raise self._not_sent()
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        self._out += frame

    def retire(self) -> None:
        """Accept no new requests, and close after the last response."""
        self.usable = False
        self._end_if_idle()

    def abort(self, reason: str, *, closed: bool = False) -> None:
        """Close at once; unanswered requests fail with *reason*.

        :param closed: the client ends, and its requests with `ClosedError`
        """
        if self.loss is None:
            self.loss, self._is_closed = reason, closed
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def after_fork(self, reason: str) -> None:
        """In a forked child: refuse calls, and detach this copy from the parent's socket.

        Closing the transport would remove the socket from the parent's selector.  Instead, its
        file descriptor is replaced by that of an unconnected socket; without a free descriptor
        it stays, unused.
        """
        self.loss = reason
        self.usable = False
        transport, self._transport = self._transport, None
        shared = transport.get_extra_info("socket") if transport is not None else None
        if shared is not None and shared.fileno() >= 0:
            with suppress(OSError), socket.socket() as unconnected:
                os.dup2(unconnected.fileno(), shared.fileno(), inheritable=False)

    # --- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one, but not by its class
        self._transport = transport
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        # uvloop reads up to 32 buffers in a turn, asyncio one.  With TLS, uvloop could drop what it
        # has decrypted if the peer closes during a pause.
        is_plain = transport.get_extra_info("sslcontext") is None
        self._reads_repeatedly = is_plain and not isinstance(self._loop, asyncio.BaseEventLoop)
        _tune(transport.get_extra_info("socket"))
        self._last_received = self._loop.time()
        self.usable = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._last_received = self._loop.time()
        if self.loss is not None:  # read while it closes
            return
        data = self._buffer[:nbytes]
        decoder = self._decoder
        is_first = not decoder.position and not decoder.has_unfinished
        if is_first and bytes(data[3:9]) == HTTP2_SETTINGS:
            self._executes_nothing = True
            self.abort(GRPC)
            return
        try:
            decoder.feed(data)
        except CodecError as fault:
            self.abort(_protocol_error(fault, bytes(self._buffer[: min(nbytes, 4)])))
        else:
            self.received_any = decoder.position > 0
        if self._reads_repeatedly and nbytes == len(self._buffer) and self.loss is None:
            # Else large responses fill memory before the loop runs the caller of the first.
            cast(asyncio.Transport, self._transport).pause_reading()
            self._loop.call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        if self._transport is not None and self.loss is None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        # No response can come any more.  Requests until `connection_lost` count as not sent, and
        # unsent bytes do not delay that.
        self.loss = self.loss or self._closed_reason()
        if self._transport is not None:  # not aborted here: with TLS its `close` may be the caller
            self._loop.call_soon(self._transport.abort)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.loss is None:
            self.loss = f"closed by the peer ({exc})" if exc else self._closed_reason()
        self.usable = False
        self._transport = None
        self.resume_writing()
        pending, self._pending = self._pending, {}
        kind = UnansweredClosedError if self._is_closed else ConnectionLostError
        for reply, _, code, _ in pending.values():
            if reply.done():
                continue
            if self._executes_nothing:
                reply.set_exception(self._not_sent())
            else:
                reply.set_exception(kind(self.address, code, self.loss))
        self._on_lost(self)

    def _not_sent(self) -> NotConnectedError:
        kind = UnsentClosedError if self._is_closed else NotConnectedError
        return kind(self.address, self.loss or "")

    def _closed_reason(self) -> str:
        transport = self._transport
        plain = transport is not None and transport.get_extra_info("sslcontext") is None
        if plain and self._pending and not self.received_any:
            return "closed by the peer without a response; it may require TLS"
        return "closed by the peer"

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._must_wait = True

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)
        self._wake_waiters()

    def _deliver(self, encoding: int, header: bytes, body: bytes) -> None:
        command = decode_command(encoding, header, body)
        if not command.flag & RESPONSE_FLAG:
            self._on_request(self, command, len(header) + len(body))
            return
        pending = self._pending.pop(command.opaque, None)
        if pending is None:
            self._deliver_late(command)
            return
        if not pending[0].done():
            pending[0].set_result(command)
        else:  # cancelled in this turn: its caller runs before the next one, and may expect it
            self._loop.call_soon(self._deliver_late, command)
        if self._must_wait or not self.usable:
            self._wake_waiters()

    def _deliver_late(self, command: Command) -> None:
        if (on_late := self._late.pop(command.opaque, None)) is not None:
            on_late(command)
        else:
            self.stray_replies += 1

    def _expect_late(
        self, opaque: int, on_late: OnLate, abandoned: asyncio.Future[Command]
    ) -> None:
        is_done = abandoned.done() and not abandoned.cancelled()
        if is_done and abandoned.exception() is None:
            on_late(abandoned.result())  # it arrived just before the cancellation
        elif self.loss is None:
            self._late[opaque] = on_late
            if len(self._late) > MAX_LATE:
                self._late.popitem(last=False)

    def _flush(self) -> None:
        self._flush_due = False
        if self._out:
            self._write_gathered()
        if self._must_wait or not self.usable:
            self._wake_waiters()

    def _write_gathered(self) -> None:
        out, self._out = self._out, []
        self._last_flush = len(out) // 2
        self._write(b"".join(out))

    def _write(self, data: bytes) -> None:
        transport = self._transport
        # asyncio logs a warning for writes between a failed one and `connection_lost`.
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def _end_if_idle(self) -> None:
        """Close a retired connection once it is unused; written bytes are still sent."""
        in_use = self._pending or self._waiters or self._waiters.woken or self._out
        if in_use or self.loss is not None:
            return
        self.loss = RETIRED
        if self._transport is not None:  # not closed here: with TLS that reads into the buffer
            self._loop.call_soon(self._transport.close)

    async def _wait_for_room(self, code: int, deadline: float, timeout: float) -> None:
        """Wait, in order of arrival, for buffer space and for fewer than ``max_in_flight``."""
        self._must_wait = True
        try:
            admitted = await self._waiters.wait(deadline - self._loop.time())
        finally:
            # After this caller became pending; after a cancellation, its place goes to the next.
            self._loop.call_soon(self._wake_waiters)
        if not admitted or self._loop.time() >= deadline:  # the event loop may have stalled
            raise self._no_room(code, timeout)

    def _wake_waiters(self) -> None:
        """Wake as many callers as there is room for."""
        waiters = self._waiters
        if not self._out:  # else after the next write
            room = min(self._max_in_flight - len(self._pending), ADMIT_AT_ONCE) - waiters.woken
            while room > 0 and self._writable is None and waiters.wake_one():
                room -= 1
        self._must_wait = bool(waiters or waiters.woken) or self._writable is not None
        if not self.usable:
            self._end_if_idle()

    async def _wait_for_space(self, code: int, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while self._writable is not None:
                    await asyncio.shield(self._writable)
        except TimeoutError:
            raise self._no_room(code, timeout) from None

    def _no_room(self, code: int, timeout: float) -> NotConnectedError:
        why = "peer does not read" if self._writable is not None else "too many are unanswered"
        reason = f"request {code} found no room within {timeout:.3g} s ({why})"
        return NotConnectedError(self.address, reason)

    def _sweep(self) -> None:
        """Fail requests past their deadline; runs only while some are unanswered."""
        self._sweep_timer = None
        now = self._loop.time()
        self._note_progress(now)
        expired = [opaque for opaque, entry in self._pending.items() if entry[1] <= now]
        if now < self._slow_until:
            expired = self._without_patient(expired, now)
        self._swept_at = now
        started = now
        for opaque in expired:
            reply, deadline, code, timeout = self._pending.pop(opaque)
            started = min(started, deadline - timeout)
            if not reply.done():
                reply.set_exception(RequestTimeoutError(self.address, code, timeout))
        self._decoder.trim(idle=not self._pending)
        if expired and self._on_timeout is not None:
            self._on_timeout(self.address)
        if expired and (reason := self._reason_to_abort(now, started, expired[-1])) is not None:
            self.abort(reason)
        if self._pending:
            self._sweep_timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _note_progress(self, now: float) -> None:
        """Record since when the same frame has been incomplete, and whether the peer takes bytes.

        This costs nothing per received or sent byte.
        """
        before, self._unsent = self._unsent, _unsent_bytes(self._transport)
        if UPLOAD_BYTES <= self._unsent < before:
            self._taken_at = now
        if not self._decoder.has_unfinished:
            self._stuck_at = None
        elif self._stuck_at != self._decoder.position:
            self._stuck_at, self._stuck_since = self._decoder.position, now
        elif (
            now - self._last_received < STUCK_FRAME_SECONDS
            and now - self._stuck_since < MAX_SLOW_SECONDS
            and self._is_expected()
        ):
            self._slow_until = now + SLOW_LINK_SECONDS

    def _without_patient(self, expired: list[int], now: float) -> list[int]:
        """Return those of *expired* that do not wait for a slow link."""
        pending = self._pending
        patient = {
            opaque: deadline
            for opaque, (_, deadline, code, _) in pending.items()
            if deadline <= now < deadline + MAX_SLOW_SECONDS and code in PATIENT
        }
        new = [opaque for opaque, deadline in patient.items() if deadline > self._swept_at]
        if new and self._is_swallowed(new[-1]):
            return expired
        return [opaque for opaque in expired if opaque not in patient]

    def _reason_to_abort(self, now: float, started: float, timed_out: int) -> str | None:
        """Return why the open connection is unusable.

        :param started: start of the first request that has timed out now
        :param timed_out: an opaque
        """
        if self._silent_after != self._last_received:
            # Before it was asked, the peer may have had nothing to send.
            self._silent_after = self._last_received
            self._silent_since = max(started, self._last_received)
        # A proxy before the peer may still have as much as it took in this time.
        taking = max(0.0, self._taken_at - self._silent_since)
        silent = now - self._silent_since - taking
        if silent > max(SILENCE_SECONDS, taking):
            return f"silent for {silent:.0f} s"
        stuck = now - self._stuck_since
        if self._stuck_at is None or stuck < STUCK_FRAME_SECONDS or self._is_slow(timed_out):
            return None
        return f"no complete frame for {stuck:.0f} s: the peer's frame lengths cannot be right"

    def _is_slow(self, timed_out: int) -> bool:
        """Whether the incomplete frame is merely slow: a request or an expected response."""
        return self._is_expected() and not self._is_swallowed(timed_out)

    def _is_swallowed(self, timed_out: int) -> bool:
        """Whether the response to *timed_out* is in the incomplete frame, whose length is wrong."""
        body = self._decoder.unfinished_body()
        return any(mark in body for mark in _response_marks(timed_out))

    def _is_expected(self) -> bool:
        """Whether the incomplete frame is known to be a request or an expected response."""
        if (start := self._decoder.unfinished_header()) is None:
            return False
        try:
            command = decode_command(*start, b"")
        except CodecError:
            return False
        return not command.is_response or command.opaque in self._pending


def _response_marks(opaque: int) -> tuple[bytes, ...]:
    """Return the bytes that identify a response to *opaque*, by header encoding."""
    binary = opaque.to_bytes(4, "big") + RESPONSE_FLAG.to_bytes(4, "big")
    return binary, b'"opaque":%d,' % opaque, b'"opaque":%d}' % opaque


def _unsent_bytes(transport: asyncio.Transport | None) -> int:
    """Return how many written bytes have not left; on Linux, those that are not acknowledged."""
    if transport is None:
        return 0
    unsent = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sys.platform == "linux" and sock is not None:
        queued = array("i", [0])
        with suppress(OSError, ValueError):  # closed meanwhile
            ioctl(sock.fileno(), TIOCOUTQ, queued)
        unsent += queued[0]
    return unsent


def _tune(sock: socket.socket | None) -> None:
    """Set TCP_NODELAY and keep-alive."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # an option that the kernel refuses; on macOS, the peer is gone already
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has all of them; macOS has the first one by another name.
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    options = {idle: 6, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 12_000}
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _protocol_error(fault: CodecError, first: bytes) -> str:
    if first == b"HTTP":
        return "the peer speaks HTTP: this is not the remoting port of a broker or name server"
    return f"the peer sent bytes that are not RocketMQ: {fault}"
