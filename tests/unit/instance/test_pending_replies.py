"""Pending replies: deadlines, late and unknown replies."""

from __future__ import annotations

import asyncio
from time import monotonic

from rocketmq_aio.instance import pending_replies as replies_module
from rocketmq_aio.instance.pending_replies import PendingReplies
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue


def reply(correlation_id: str) -> MessageExt:
    properties = f"CORRELATION_ID\x01{correlation_id}\x02".encode()
    return MessageExt("t", b"x", MessageQueue("t", "", 0), 0, b"", properties)


async def test_a_reply_ends_the_wait_of_its_request_only() -> None:
    replies = PendingReplies()
    first, second = (replies.expect(name, monotonic() + 60) for name in ("a", "b"))
    came = reply("b")
    replies.deliver(came)

    assert await second is came
    assert not first.done()
    replies.forget("a")
    assert (len(replies), replies.dropped) == (0, 0)


async def test_strange_and_late_replies_are_counted() -> None:
    replies = PendingReplies()
    replies.expect("a", monotonic() + 60).cancel()
    for name in ("a", "a", "b", ""):
        replies.deliver(reply(name))

    assert (len(replies), replies.dropped) == (0, 4)


async def test_deadlines_end_waits_one_by_one() -> None:
    replies = PendingReplies()
    later = replies.expect("b", monotonic() + 60)
    soon = replies.expect("a", monotonic())

    assert await soon is None
    assert not later.done()
    replies.forget("a")
    replies.forget("b")


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
