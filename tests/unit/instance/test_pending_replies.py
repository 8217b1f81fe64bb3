"""Pending replies: deadlines, late and unknown replies."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from rocketmq_aio.instance import pending_replies as replies_module
from rocketmq_aio.instance.pending_replies import PendingReplies


async def test_a_reply_ends_the_wait_of_its_request_only() -> None:
    replies = PendingReplies()
    first, second = (replies.expect(name, monotonic() + 60) for name in ("a", "b"))

    assert replies.take("b") is second
    assert not first.done()
    replies.forget("a")
    assert (len(replies), replies.dropped) == (0, 0)


async def test_strange_and_late_replies_are_counted() -> None:
    replies = PendingReplies()
    replies.expect("a", monotonic() + 60).cancel()
    replies.expect("c", monotonic() + 60).set_result(None)

    assert [replies.take(name) for name in ("a", "b", "c", "")] == [None] * 4
    assert replies.dropped == 4


async def test_one_timer_ends_waits_at_their_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(replies_module, "monotonic", lambda: now)
    replies = PendingReplies()
    cancelled = replies.expect("a", 1.0)
    timer = replies._timer
    soon, later = replies.expect("b", 1.0), replies.expect("c", 2.0)
    assert replies._timer is timer
    cancelled.cancel()  # its request is forgotten later
    now = 1.0
    assert await soon is None
    assert not later.done()
    now = 2.0

    assert await later is None
    for name in ("a", "b", "c"):
        replies.forget(name)


async def test_close_ends_waits_except_those_that_have_ended() -> None:
    replies = PendingReplies()
    ended, waiting = (replies.expect(name, monotonic() + 60) for name in ("a", "b"))
    ended.cancel()
    replies.close(LookupError("closed"))

    assert isinstance(waiting.exception(), LookupError)
    for name in ("a", "b"):
        replies.forget(name)


async def test_there_is_no_timer_without_pending_replies() -> None:
    replies = PendingReplies()
    assert await replies.expect("a", monotonic()) is None
    replies.forget("a")
    loop = asyncio.get_running_loop()
    swept: asyncio.Future[None] = loop.create_future()
    loop.call_later(2 * replies_module.SWEEP_SECONDS, swept.set_result, None)
    await swept

    assert replies._timer is None
    assert await replies.expect("b", monotonic()) is None  # and it begins again
