"""Connection: requests that wait for room or for a peer that does not read."""

from __future__ import annotations

import asyncio
import time

import pytest

from rocketmq_aio.errors import ConnectionLostError, NotConnectedError
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.remoting.connection import ADMIT_AT_ONCE, WRITE_HIGH_BYTES
from tests.unit.remoting.until import settle
from tests.unit.remoting.wire import Wire, outcome

BIG = bytes(64 * 1024)


@pytest.mark.parametrize("at_once", [1, 3])
async def test_unanswered_requests_are_limited(at_once: int) -> None:
    async with Wire(max_in_flight=3) as wire:
        asked = [wire.ask() for _ in range(12)]
        most = 0
        for served in range(0, 12, at_once):
            await settle()
            most = max(most, wire.connection.in_flight)
            for request in wire.written[served : served + at_once]:
                wire.answer(request)
        await asyncio.gather(*asked)

        assert most == 3


async def test_waiters_are_served_in_order_of_arrival() -> None:
    async with Wire(max_in_flight=1) as wire:
        asked = [wire.ask(b"%d" % number) for number in range(5)]
        for served in range(5):
            await settle()
            wire.answer(wire.written[served])
        await asyncio.gather(*asked)

        assert [request.body for request in wire.written] == [b"0", b"1", b"2", b"3", b"4"]


async def test_requests_about_a_membership_do_not_wait_for_long_polls() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder, waiting = wire.ask(b"poll"), wire.ask(b"poll")
        await settle()
        commit = wire.ask(b"commit", code=RequestCode.UPDATE_CONSUMER_OFFSET)
        await settle()

        assert [request.body for request in wire.written] == [b"poll", b"commit"]
        wire.answer(wire.written[1])
        await commit
        assert wire.connection.in_flight == 1
        wire.answer(wire.written[0])
        await holder
        await settle()
        wire.answer(wire.written[2])
        await waiting


async def test_requests_about_a_membership_wait_for_a_peer_that_does_not_read() -> None:
    async with Wire() as wire:
        before = wire.ask()
        await settle()
        wire.connection.pause_writing()
        wire.answer(wire.written[0])
        await before
        commit = wire.ask(b"commit", code=RequestCode.UPDATE_CONSUMER_OFFSET)
        await settle()
        assert len(wire.written) == 1
        wire.connection.resume_writing()
        await settle()

        wire.answer(wire.written[1])
        await commit


async def test_new_requests_do_not_overtake_waiters() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder = wire.ask(b"first")
        await settle()
        waiting = wire.ask(b"second")
        await settle()
        wire.answer(wire.written[0])
        pushing = wire.request(b"third")
        pushing.send(None)  # in the very step in which the place became free
        await settle()
        await holder

        assert [request.body for request in wire.written] == [b"first", b"second"]
        wire.answer(wire.written[1])
        await waiting
        pushing.close()


async def test_a_slot_given_to_a_cancelled_caller_is_passed_on() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder = wire.ask(b"first")
        await settle()
        leaving, staying = wire.ask(b"leaving"), wire.ask(b"staying")
        await settle()
        wire.answer(wire.written[0])
        leaving.cancel()  # it has the place already, and has not run
        await settle()

        assert [request.body for request in wire.written] == [b"first", b"staying"]
        wire.answer(wire.written[1])
        await asyncio.gather(holder, staying)


async def test_many_cancelled_requests_leave_the_order_of_the_others() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder = wire.ask(b"first")
        await settle()
        asked = {number: wire.ask(b"%d" % number) for number in range(200)}
        await settle()
        staying = [number for number in asked if number % 50 == 49]
        for number in sorted(set(asked) - set(staying), reverse=True):
            asked[number].cancel()
        await settle()
        for served in range(1 + len(staying)):
            wire.answer(wire.written[served])
            await settle()
        await asyncio.gather(holder, *(asked[number] for number in staying))

        assert [each.body for each in wire.written] == [b"first", *(b"%d" % n for n in staying)]


async def test_waiting_for_a_place_counts_against_the_deadline() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder = wire.ask()
        await settle()
        error = await outcome(wire.request(timeout=0.02))

        assert isinstance(error, NotConnectedError)
        assert "unanswered" in error.reason
        assert len(wire.written) == 1
        holder.cancel()


async def test_a_request_that_gets_a_place_after_its_deadline_is_not_written() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder = wire.ask(b"first")
        await settle()
        late, following = wire.ask(b"late", timeout=0.02), wire.ask(b"next")
        await settle()
        wire.answer(wire.written[0])
        time.sleep(0.03)  # noqa: ASYNC251 - stalls the event loop
        error = await outcome(late)
        await settle()

        assert isinstance(error, NotConnectedError)
        assert [request.body for request in wire.written] == [b"first", b"next"]
        wire.answer(wire.written[1])
        await asyncio.gather(holder, following)


async def test_a_timeout_frees_the_place_for_the_next() -> None:
    async with Wire(max_in_flight=1) as wire:
        slow = wire.ask(b"slow", timeout=0.01)
        await settle()
        following = wire.ask(b"next")
        await outcome(slow)
        await settle()

        assert [request.body for request in wire.written] == [b"slow", b"next"]
        wire.answer(wire.written[1])
        await following


async def test_a_peer_that_does_not_read_makes_requests_wait() -> None:
    async with Wire() as wire:
        wire.transport.stall()
        first = [wire.ask(BIG) for _ in range(2 * WRITE_HIGH_BYTES // len(BIG))]
        await settle()
        later = [wire.ask(BIG, timeout=0.02) for _ in range(500)]
        errors = await asyncio.gather(*map(outcome, later))

        assert {type(error) for error in errors} == {NotConnectedError}
        assert "does not read" in str(errors[0])
        assert 0 < len(wire.written) <= len(first)
        assert wire.transport.most_unsent <= 2 * WRITE_HIGH_BYTES
        for task in first:
            task.cancel()


async def test_waiting_requests_are_admitted_in_portions() -> None:
    async with Wire() as wire:
        wire.transport.stall()
        wire.connection.pause_writing()
        asked = [wire.ask(BIG) for _ in range(400)]
        await settle()
        assert wire.written == []
        wire.transport.flow(still_stalled=True)
        await settle(100)

        assert 0 < len(wire.written) <= ADMIT_AT_ONCE
        assert wire.transport.most_unsent <= WRITE_HIGH_BYTES + ADMIT_AT_ONCE * 2 * len(BIG)
        for task in asked:
            task.cancel()


async def test_waiters_are_served_in_order_when_the_peer_reads_again() -> None:
    async with Wire() as wire:
        wire.connection.pause_writing()
        asked = [wire.ask(b"%d" % number) for number in range(200)]
        await settle()
        assert wire.transport.writes == []
        wire.transport.flow()
        await settle(50)

        assert [request.body for request in wire.written] == [b"%d" % n for n in range(200)]
        assert len(wire.transport.writes) <= 200 / ADMIT_AT_ONCE + 6
        for request in wire.written:
            wire.answer(request)
        await asyncio.gather(*asked)


async def test_losing_the_connection_ends_the_wait_for_room() -> None:
    async with Wire(max_in_flight=1) as wire:
        holder, *waiting = [wire.ask() for _ in range(200)]
        await settle()
        wire.connection.abort("gone")

        assert isinstance(await outcome(holder), ConnectionLostError)
        assert {type(await outcome(each)) for each in waiting} == {NotConnectedError}


async def test_a_single_request_is_written_at_once_after_any_burst() -> None:
    async with Wire(max_in_flight=1) as wire:
        asked = [wire.ask(timeout=0.01) for _ in range(5)]
        await asyncio.gather(*map(outcome, asked))
        await settle()
        before = len(wire.written)
        request = wire.request()
        request.send(None)

        await settle()
        assert len(wire.written) == before + 1
        request.close()
