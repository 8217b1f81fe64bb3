"""Connection: requests and responses over a transport in memory."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable
from typing import Final

import pytest

from rocketmq_aio.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError
from rocketmq_aio.protocol.codes import ONEWAY_FLAG, RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.remoting import connection as connection_module
from rocketmq_aio.remoting.connection import (
    MAX_OPAQUE,
    RECEIVE_BYTES,
    SWEEP_SECONDS,
    UPLOAD_BYTES,
    Connection,
)
from tests.unit.costs import held_bytes
from tests.unit.remoting.until import settle, until
from tests.unit.remoting.wire import PEER, Wire, outcome

LARGE: Final = 8 * UPLOAD_BYTES  # of an upload
BIG = bytes(64 * 1024)


async def test_answers_are_matched_by_opaque_not_by_order() -> None:
    async with Wire() as wire:
        asked = [wire.ask(), wire.ask()]
        await settle()
        first, second = wire.written
        wire.answer(second, b"to the second")
        wire.answer(first, b"to the first")

        assert [(await task).body for task in asked] == [b"to the first", b"to the second"]


async def test_a_lone_request_is_written_at_once() -> None:
    async with Wire() as wire:
        request = wire.request()
        request.send(None)  # one step, no turn of the loop

        assert len(wire.written) == 1
        request.close()


async def test_concurrent_requests_share_writes() -> None:
    async with Wire() as wire:
        asked = [wire.ask() for _ in range(500)]
        await settle()
        requests = wire.written
        for request in requests:
            wire.answer(request)
        await asyncio.gather(*asked)

        assert len({request.opaque for request in requests}) == 500
        assert len(wire.transport.writes) <= 8  # each with half of all that is unanswered


async def test_a_peer_with_little_else_to_do_need_not_wait_for_the_last_of_many() -> None:
    async with Wire() as wire:
        asked = [wire.ask() for _ in range(100)]
        await settle()
        for request in wire.written[:60]:
            wire.answer(request)
        await asyncio.gather(*asked[:60])
        del wire.transport.writes[:]
        more = [wire.ask() for _ in range(60)]
        await settle()

        assert len(wire.transport.writes) == 2
        assert len(wire.written) == 60
        for request in wire.written:
            wire.answer(request)
        for task in asked[60:]:
            task.cancel()
        await asyncio.gather(*more)


async def test_frames_of_a_turn_share_one_write_while_the_peer_is_busy() -> None:
    async with Wire() as wire:
        asked = [wire.ask() for _ in range(500)]
        await settle()
        del wire.transport.writes[:]
        asked += [wire.ask() for _ in range(60)]
        await settle()

        assert len(wire.transport.writes) == 1
        assert len(wire.written) == 60
        for task in asked:
            task.cancel()


async def test_a_cancelled_request_leaves_a_whole_frame_and_frees_its_slot() -> None:
    async with Wire(max_in_flight=1) as wire:
        abandoned = wire.ask(BIG)
        await settle()
        abandoned.cancel()
        await settle()
        following = wire.ask(b"next")
        await settle()

        first, second = wire.written
        assert (first.body, second.body) == (BIG, b"next")
        wire.answer(second)
        assert (await following).code == 0


async def test_the_answer_to_a_cancelled_request_is_dropped_and_counted() -> None:
    async with Wire() as wire:
        abandoned = wire.ask()
        await settle()
        abandoned.cancel()
        await settle()
        wire.answer(wire.written[0], b"too late")
        following = wire.ask()
        await settle()
        wire.answer(wire.written[1], b"in time")

        assert (await following).body == b"in time"
        assert wire.connection.stray_replies == 1
        assert wire.connection.in_flight == 0


async def test_the_late_response_to_a_request_goes_to_its_function_once() -> None:
    async with Wire() as wire:
        late: list[bytes] = []
        asked = [wire.ask(timeout=t, on_late=lambda r: late.append(r.body)) for t in (0.0, 60.0)]
        await settle()
        asked[1].cancel()
        await asyncio.wait(asked)
        for request, body in zip([*wire.written, wire.written[0]], b"abc", strict=True):
            wire.answer(request, bytes([body]))

        assert late == [b"a", b"b"]
        assert wire.connection.stray_replies == 1


@pytest.mark.parametrize("order", ["cancelled first", "answered first"])
async def test_a_response_in_the_turn_of_a_cancellation_goes_to_its_function(order: str) -> None:
    async with Wire() as wire:
        late: list[bytes] = []
        asked = wire.ask(on_late=lambda r: late.append(r.body))
        await settle()
        if order == "cancelled first":
            asked.cancel()
        wire.answer(wire.written[0], b"a")
        asked.cancel()
        await settle()
        wire.answer(wire.written[0], b"again")

        assert asked.cancelled()
        assert late == [b"a"]
        assert wire.connection.stray_replies == 1


async def test_the_functions_for_late_responses_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "MAX_LATE", 2)
    async with Wire() as wire:
        late: list[int] = []
        asked = [wire.ask(on_late=lambda r: late.append(r.opaque)) for _ in range(5)]
        await settle()
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
        for request in wire.written:
            wire.answer(request)

        assert late == [request.opaque for request in wire.written[-2:]]


async def test_a_request_that_is_cancelled_before_its_write_disturbs_no_other() -> None:
    async with Wire() as wire:
        asked = [wire.ask(b"%d" % number) for number in range(3)]
        await asyncio.sleep(0)  # in the buffer of this turn, not written
        asked[1].cancel()
        await settle()
        wire.answer(wire.written[0], b"a")
        wire.answer(wire.written[2], b"c")

        assert [(await task).body for task in (asked[0], asked[2])] == [b"a", b"c"]


async def test_a_second_answer_is_dropped_and_counted() -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        wire.answer(wire.written[0], b"once")
        wire.answer(wire.written[0], b"twice")

        assert (await asked).body == b"once"
        assert wire.connection.stray_replies == 1


async def test_an_answer_with_an_unknown_opaque_is_dropped_and_counted() -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        wire.answer(Command(0, 4711))
        wire.answer(wire.written[0])

        assert (await asked).code == 0
        assert wire.connection.stray_replies == 1


async def test_opaques_wrap_around_and_skip_those_in_use() -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        wire.connection._opaque = MAX_OPAQUE - 1

        assert [wire.connection.next_opaque() for _ in range(3)] == [MAX_OPAQUE, 0, 2]
        asked.cancel()


async def test_a_request_does_not_take_the_opaque_of_an_unanswered_one() -> None:
    async with Wire() as wire:
        asked = [wire.ask()]
        await settle()
        wire.connection._opaque -= 1  # as after all numbers
        asked.append(wire.ask())
        await settle()
        for request, body in zip(wire.written, (b"first", b"second"), strict=True):
            wire.answer(request, body)

        assert [(await task).body for task in asked] == [b"first", b"second"]


async def test_a_request_that_is_not_answered_ends_at_its_own_deadline() -> None:
    async with Wire() as wire:
        loop = asyncio.get_running_loop()
        started = loop.time()
        patient = wire.ask(timeout=60.0)
        with pytest.raises(RequestTimeoutError) as caught:
            await asyncio.wait_for(wire.request(timeout=0.05), 15)

        assert loop.time() - started >= 0.05
        assert (caught.value.address, caught.value.code) == (PEER, 30)
        assert isinstance(caught.value, TimeoutError)
        assert wire.connection.in_flight == 1
        patient.cancel()


async def test_one_timer_watches_over_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Wire() as wire:
        timers: list[float] = []
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def counted(when: float, *args: object, **named: object) -> object:
            timers.append(when)
            return call_at(when, *args, **named)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(wire.connection._loop, "call_at", counted, raising=False)
        asked = [wire.ask() for _ in range(100)]
        await settle()

        assert len(timers) < 10  # one, which is set anew where the machine is slow
        for task in asked:
            task.cancel()


async def test_an_idle_connection_has_no_timer() -> None:
    async with Wire() as wire:
        asked = wire.ask(timeout=0.01)
        await outcome(asked)

        assert wire.connection._sweep_timer is None
        assert wire.connection.in_flight == 0


@pytest.mark.parametrize("held", [True, False])
async def test_a_large_response_stays_as_it_is_while_it_is_used(held: bool) -> None:
    async with Wire() as wire:
        bodies: list[bytes] = []
        for letter in b"abc":
            asked = wire.ask()
            await settle()
            wire.answer(wire.written[-1], bytes([letter]) * 1_000_000)
            body = (await asked).body
            assert body == bytes([letter]) * 1_000_000
            if held:
                bodies.append(body)

        assert [each[:1] for each in bodies] == [b"a", b"b", b"c"] * held
        assert [each.count(each[:1]) for each in bodies] == [1_000_000] * 3 * held


async def test_an_idle_connection_keeps_no_memory_of_a_large_response() -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        wire.answer(wire.written[0], bytes(1_000_000))
        await asked

        await until(lambda: wire.connection._sweep_timer is None, "the sweep to end")
        assert wire.connection._decoder._kept == []


async def test_a_turn_of_the_loop_reads_at_most_one_full_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else responses that arrive together are all in memory before the first is used."""
    monkeypatch.setattr(connection_module, "RECEIVE_BYTES", 4096)
    wire = Wire()
    turns, reads = [0], list[int]()

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    def buffer_updated(size: int) -> None:
        reads.append(turns[0])
        Connection.buffer_updated(wire.connection, size)

    monkeypatch.setattr(wire.connection, "buffer_updated", buffer_updated)
    ours, peer = socket.socketpair()
    await asyncio.get_running_loop().create_unix_connection(lambda: wire.connection, sock=ours)
    with peer:
        asked = wire.ask()
        await asyncio.sleep(0)
        answer = Command(0, wire.connection._opaque, RESPONSE_FLAG, body=BIG)
        peer.sendall(encode_command(answer, {}))
        counting = asyncio.create_task(count())
        assert (await asked).body == BIG
        counting.cancel()
        wire.connection.abort("the test is over")

    assert len(reads) > 10
    assert len(set(reads)) == len(reads)


async def test_a_lost_connection_fails_pending_requests_and_rejects_new_ones() -> None:
    async with Wire() as wire:
        asked = [wire.ask() for _ in range(3)]
        await settle()
        wire.connection.connection_lost(ConnectionResetError("reset"))
        lost = [await outcome(task) for task in asked]
        late = await outcome(wire.request())

        assert [type(each) for each in lost] == [ConnectionLostError] * 3
        assert isinstance(late, NotConnectedError)
        assert "reset" in late.reason
        assert wire.lost == 1


@pytest.mark.parametrize("end", ["loss", "timeout"])
async def test_a_request_cancelled_in_the_turn_of_its_end_does_not_change_that_of_others(
    end: str,
) -> None:
    async with Wire() as wire:
        cancelled, other = wire.ask(timeout=0.0), wire.ask(timeout=0.02)
        await settle()
        cancelled.cancel()
        if end == "loss":
            wire.connection.connection_lost(None)
        else:
            wire.connection._sweep()

        error = ConnectionLostError if end == "loss" else RequestTimeoutError
        assert isinstance(await outcome(other), error)
        assert wire.lost == (end == "loss")


async def test_requests_after_the_end_of_the_stream_count_as_not_sent() -> None:
    async with Wire() as wire:
        before = wire.ask()
        await settle()
        wire.connection.eof_received()
        error = await outcome(wire.request())

        assert isinstance(error, NotConnectedError)
        assert isinstance(await outcome(before), ConnectionLostError)
        assert wire.transport.ended == "aborted"


async def test_nothing_is_written_between_a_failed_write_and_the_loss_of_the_connection() -> None:
    async with Wire() as wire:
        wire.transport.abort()  # as asyncio does, before it calls connection_lost
        error = await outcome(wire.request())

        assert isinstance(error, ConnectionLostError)
        assert wire.transport.writes == []


@pytest.mark.parametrize(
    ("data", "reason", "kind"),
    [
        (b"\xff\xff\xff\xff and so on", "frame length", ConnectionLostError),
        (b"\x7f\xff\xff\xff", "2147483647", ConnectionLostError),  # before its bytes arrive
        (b"\x00\x00\x00\x0a\x00\x00\x00\x06[1, 2]", "JSON header", ConnectionLostError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP", ConnectionLostError),
        # The beginning of what the gRPC port of a 5.5.0 proxy sends: the request was not read.
        (
            b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x7f\xff\xff\xff\x00\x04",
            "gRPC port of a proxy",
            NotConnectedError,
        ),
    ],
    ids=["negative length", "length of 2 GiB", "invalid header", "web server", "gRPC server"],
)
async def test_invalid_bytes_close_the_connection_with_the_reason(
    data: bytes, reason: str, kind: type[ConnectionLostError | NotConnectedError]
) -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        wire.receive(data)
        error = await outcome(asked)

        assert isinstance(error, kind)
        assert reason in error.reason
        assert wire.transport.ended == "aborted"


async def test_a_retired_connection_takes_the_answers_that_are_due_and_ends() -> None:
    async with Wire() as wire:
        asked = [wire.ask(), wire.ask()]
        await settle()
        wire.connection.retire()
        for request in wire.written:
            assert wire.transport.ended is None
            wire.answer(request)

        assert [(await task).code for task in asked] == [0, 0]
        assert wire.transport.ended == "closed"


async def test_a_retired_connection_serves_those_in_line_first() -> None:
    async with Wire(max_in_flight=1) as wire:
        asked = [wire.ask(), wire.ask()]
        await settle()
        wire.connection.retire()
        wire.answer(wire.written[0])
        await settle()
        wire.answer(wire.written[1])

        assert [(await task).code for task in asked] == [0, 0]
        assert wire.transport.ended == "closed"


async def test_a_retired_connection_ends_when_the_last_caller_leaves() -> None:
    async with Wire(max_in_flight=1) as wire:
        asked = [wire.ask(), wire.ask()]
        await settle()
        wire.connection.retire()
        for task in reversed(asked):
            task.cancel()
        await settle()

        assert wire.transport.ended == "closed"


async def test_oneway_requests_are_sent_before_a_retired_connection_closes() -> None:
    async with Wire() as wire:
        frame = encode_command(Command(34, 1, ONEWAY_FLAG), {})
        await wire.connection.send_oneway(34, (frame, b""), 1.0)
        wire.connection.retire()
        await settle()

        assert [command.code for command in wire.written] == [34]
        assert wire.transport.ended == "closed"


async def test_a_post_waits_for_a_peer_that_does_not_read_but_for_no_place() -> None:
    async with Wire(max_in_flight=1) as wire:
        frame = encode_command(Command(34, 1, ONEWAY_FLAG), {}), b""
        holder = wire.ask()
        await settle()
        await wire.connection.send_oneway(34, frame, 1.0)
        wire.connection.pause_writing()
        with pytest.raises(NotConnectedError, match="does not read"):
            await wire.connection.send_oneway(34, frame, 0.01)

        assert [command.code for command in wire.written] == [30, 34]
        leaving, staying = (
            asyncio.ensure_future(wire.connection.send_oneway(34, frame, 60.0)) for _ in range(2)
        )
        await settle()
        leaving.cancel()
        await settle()
        assert not staying.done()
        wire.connection.resume_writing()
        await staying
        holder.cancel()


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_oneway_request_over_a_lost_connection_raises(waiting: bool) -> None:
    async with Wire() as wire:
        frame = encode_command(Command(34, 1, ONEWAY_FLAG), {}), b""
        if waiting:  # for the peer to read
            wire.connection.pause_writing()
        else:
            wire.connection.abort("gone")
        sending = asyncio.ensure_future(wire.connection.send_oneway(34, frame, 60.0))
        await settle()
        wire.connection.abort("gone")

        with pytest.raises(NotConnectedError, match="gone"):
            await sending


async def test_the_first_reason_why_a_connection_ends_is_that_of_the_errors() -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        wire.connection.abort("silent for 10 s")
        wire.connection.abort("the client was closed")

        with pytest.raises(ConnectionLostError, match="silent"):
            await asked


async def test_a_peer_silent_after_timeouts_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.05)
    async with Wire() as wire:
        patient = wire.ask(timeout=60.0)
        error = await outcome(wire.request(timeout=0.06))

        assert isinstance(error, RequestTimeoutError)
        assert isinstance(await outcome(patient), ConnectionLostError)
        assert "silent" in str(wire.connection.loss)


async def send_slowly(wire: Wire, sizes: Iterable[int]) -> None:
    """Let a stalled transport have *sizes* unsent bytes, one after another."""
    for size in sizes:
        wire.transport.unsent = size
        if isinstance(await outcome(wire.request(timeout=SWEEP_SECONDS)), ConnectionLostError):
            break


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        (range(LARGE, LARGE - 100, -10), True),
        (range(UPLOAD_BYTES // 2, UPLOAD_BYTES // 2 - 100, -10), False),
        ([LARGE] * 10, False),
    ],
    ids=["large", "small", "large, which nobody takes"],
)
async def test_a_large_request_that_leaves_slowly_keeps_the_connection(
    monkeypatch: pytest.MonkeyPatch, sizes: Iterable[int], kept: bool
) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.7)
    async with Wire() as wire:
        wire.transport.stall()
        await send_slowly(wire, sizes)

        assert wire.connection.usable is kept
        assert ("silent" in str(wire.connection.loss)) is not kept


async def test_a_proxy_may_pass_a_large_request_on_as_slowly_as_it_took_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.3)
    async with Wire() as wire:
        wire.transport.stall()
        await send_slowly(wire, range(LARGE, LARGE - 200, -10))
        await send_slowly(wire, [0] * 5)
        assert wire.connection.usable
        await send_slowly(wire, [0] * 100)

        assert "silent" in str(wire.connection.loss)


async def test_a_slow_response_after_an_idle_time_does_not_abort_the_connection() -> None:
    async with Wire() as wire:
        patient = wire.ask(timeout=60.0)  # as a long poll
        wire.connection._last_received -= 2 * connection_module.SILENCE_SECONDS
        error = await outcome(wire.request(timeout=0.02))
        await settle()

        assert isinstance(error, RequestTimeoutError)
        assert wire.connection.usable
        assert not patient.done()
        patient.cancel()


async def test_timeouts_one_after_another_without_a_byte_abort_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.3)
    async with Wire() as wire:
        errors = []
        while wire.connection.usable:  # each alone is shorter
            errors.append(await outcome(wire.request(timeout=0.02)))
            await settle()

        assert len(errors) > 1
        assert "silent" in str(wire.connection.loss)


async def test_a_timeout_does_not_abort_a_connection_that_receives() -> None:
    async with Wire() as wire:
        slow = wire.ask(timeout=0.02)
        quick = wire.ask()
        await settle()
        error = await outcome(slow)
        wire.connection._silent_since -= 2 * connection_module.SILENCE_SECONDS
        wire.answer(wire.written[1])

        assert isinstance(error, RequestTimeoutError)
        assert (await quick).code == 0
        assert isinstance(await outcome(wire.request(timeout=0.02)), RequestTimeoutError)
        assert wire.connection.usable


async def test_half_a_frame_and_silence_end_in_a_timeout() -> None:
    async with Wire() as wire:
        asked = wire.ask(timeout=0.03)
        await settle()
        whole = encode_command(Command(0, wire.written[0].opaque, 1, body=BIG), {})
        wire.receive(whole[: len(whole) // 2])

        assert isinstance(await outcome(asked), RequestTimeoutError)


async def test_a_frame_may_come_byte_by_byte() -> None:
    async with Wire() as wire:
        asked = wire.ask()
        await settle()
        frame = encode_command(Command(0, wire.written[0].opaque, 1, body=b"whole"), {})
        for byte in frame:
            wire.receive(bytes([byte]))

        assert (await asked).body == b"whole"


async def test_requests_of_the_peer_go_to_on_request() -> None:
    async with Wire() as wire:
        wire.receive(encode_command(Command(40, 9, ONEWAY_FLAG), {"consumerGroup": "g"}))

        (command,) = wire.requested
        assert (command.code, command.is_oneway) == (40, True)


async def test_a_connection_attempt_holds_no_receive_buffer() -> None:
    made: list[Connection] = []

    def make() -> None:
        made.append(
            Connection(
                PEER,
                on_request=lambda *_: None,
                on_lost=lambda _: None,
                max_in_flight=1,
                max_frame_bytes=1024,
            )
        )

    make()  # what is loaded with the first one
    assert held_bytes(make) < RECEIVE_BYTES // 4


async def test_a_forked_child_without_free_descriptors_refuses_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_socket() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    wire = Wire()
    ours, peer = socket.socketpair()
    await asyncio.get_running_loop().create_unix_connection(lambda: wire.connection, sock=ours)
    transport = wire.connection._transport
    assert transport is not None
    with peer:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", make_socket)
            wire.connection.after_fork("the parent started it")
        with pytest.raises(NotConnectedError, match="the parent started it"):
            await wire.request()
        transport.abort()
        await settle()
