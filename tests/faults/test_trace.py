"""Rejected traces: no effect on the application, bounded memory."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import SendMessage
from rocketmq_aio.trace import trace_dispatcher as trace_dispatcher
from rocketmq_aio.trace.message_trace import MessageTrace
from tests.fakes.cluster import FakeCluster

TRACE = "RMQ_SYS_TRACE_TOPIC"
SEND = RequestCode.SEND_MESSAGE_V2
ORDER = Message("orders", b"hello", keys="42")


async def run(cluster: FakeCluster, trace: MessageTrace, sends: int) -> int:
    """Send with a trace and close; return how many messages were stored."""
    async with Producer("shop", namesrv=cluster.namesrv, hooks=[trace]) as producer:
        for _ in range(sends):
            assert (await producer.send(ORDER)).ok
    return len(cluster.broker.messages("orders"))


def to_traces(cluster: FakeCluster, outcome: Outcome) -> None:
    """Script *outcome* for sends of traces only."""

    def answer(command: Command, connection: ServerConnection) -> Outcome | object:
        if read_header(command, SendMessage).topic == TRACE:
            return outcome
        return cluster.broker.process(command, connection)

    cluster.broker.on(SEND, answer, times=None)  # type: ignore[arg-type]  # an awaitable outcome


@pytest.mark.parametrize("outcome", [None, Response(1, remark="no")], ids=["silent", "refusing"])
async def test_rejected_traces_do_not_affect_the_application(
    outcome: Outcome, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "SEND_SECONDS", 0.5)
    monkeypatch.setattr(trace_dispatcher, "CLOSE_SECONDS", 0.5)
    trace = MessageTrace(flush_seconds=0.01, max_waiting=50)
    async with FakeCluster(topics={"orders": 4, TRACE: 1}) as cluster:
        to_traces(cluster, outcome)
        assert await run(cluster, trace, 700) == 700

    assert (trace.sent, trace.dropped) == (0, 700)
    events = [
        each.getMessage() for each in caplog.records if each.name.endswith("trace_dispatcher")
    ]
    assert ["trace_dropped" in each for each in events] == [True, False]
    assert "dropped=700" in events[1]
