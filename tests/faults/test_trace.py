"""Rejected traces: no effect on the application, bounded memory."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.trace import trace_dispatcher as trace_dispatcher
from rocketmq_aio.trace.message_trace import MessageTrace
from tests.fakes.cluster import FakeCluster

TRACE = "RMQ_SYS_TRACE_TOPIC"
ORDER = Message("orders", b"hello", keys="42")


async def run(cluster: FakeCluster, trace: MessageTrace, sends: int) -> int:
    """Send with a trace and close; return how many messages were stored."""
    async with Producer("shop", namesrv=cluster.namesrv, hooks=[trace]) as producer:
        for _ in range(sends):
            assert (await producer.send(ORDER)).ok
    return len(cluster.broker.messages("orders"))


@pytest.mark.parametrize("outcome", [None, Response(1, remark="no")], ids=["silent", "refusing"])
async def test_rejected_traces_do_not_affect_the_application(
    outcome: Outcome, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "SEND_SECONDS", 0.5)
    monkeypatch.setattr(trace_dispatcher, "CLOSE_SECONDS", 0.5)
    trace = MessageTrace(flush_seconds=0.01, max_waiting=50)
    async with FakeCluster(topics={"orders": 4, TRACE: 1}) as cluster:
        cluster.faults.handle("send", outcome, topic=TRACE, times=None)
        assert await run(cluster, trace, 700) == 700

    assert (trace.sent, trace.dropped) == (0, 700)
    events = [
        each.getMessage() for each in caplog.records if each.name.endswith("trace_dispatcher")
    ]
    assert ["trace_dropped" in each for each in events] == [True, False]
    assert "dropped=700" in events[1]
