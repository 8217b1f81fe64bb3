"""OpenTelemetry hook: exported spans, metrics and propagated context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rocketmq_aio import Message, MessageExt, MessageQueue, SendResult, SendStatus
from rocketmq_aio.errors import BusyError, ConfigError, SendError
from rocketmq_aio.hooks import MAX_WITH_ADDED, ConsumeContext, SendContext
from rocketmq_aio.opentelemetry import OpenTelemetryHook
from rocketmq_aio.protocol.record import decode_message
from tests.unit.stored import Stored

QUEUE: Final = MessageQueue("orders", "broker-a", 3)
PARENT: Final = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
PARENT_TRACE: Final = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PARENT_SPAN: Final = 0x00F067AA0BA902B7


class Watched:
    """A hook, and what it has exported."""

    def __init__(self) -> None:
        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._metrics], shutdown_on_exit=False)
        self.hook = OpenTelemetryHook(tracer_provider=self.tracers, meter_provider=meters)

    def send(self, *messages: Message, mode: str = "send", **results: Any) -> SendContext:  # noqa: ANN401
        """Call the hook around a send with the *results*."""
        sent = _sending(*messages, mode=mode)
        self.hook.before_send(sent)
        for name, value in results.items():
            setattr(sent, name, value)
        self.hook.after_send(sent)
        return sent

    def handle(self, handled: ConsumeContext, **results: Any) -> None:  # noqa: ANN401
        """Call the hook around a handler with the *results*."""
        self.hook.before(handled)
        for name, value in results.items():
            setattr(handled, name, value)
        self.hook.after(handled)

    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def span(self) -> ReadableSpan:
        [span] = self.spans()
        return span

    def points(self, name: str) -> dict[str | None, Any]:
        """Return the data points of a metric by their error type."""
        data = self._metrics.get_metrics_data()
        assert data is not None
        [metric] = [
            metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return {_value(point.attributes, "error.type"): point for point in metric.data.data_points}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def _value(attributes: Mapping[str, Any] | None, name: str) -> Any:  # noqa: ANN401 - of any type
    return (attributes or {}).get(name)


def _sending(*messages: Message, mode: str = "send") -> SendContext:
    return SendContext(group="shop", mode=mode, messages=messages)


def _result() -> SendResult:
    return SendResult(SendStatus.SEND_OK, "7F000001", "7F0000010000", QUEUE, 17)


def _handling(*properties: Mapping[str, str]) -> ConsumeContext:
    messages = [_received(each, place) for place, each in enumerate(properties)]
    return ConsumeContext(group="billing", topic="orders", queue=QUEUE, messages=messages)


def _received(properties: Mapping[str, str], offset: int) -> MessageExt:
    pairs = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    record = Stored(properties=pairs.encode(), queue_offset=offset)
    return decode_message(record.to_bytes(), "broker-a")


def test_a_send_is_a_producer_span_named_after_the_topic(watched: Watched) -> None:
    message = Message("orders", b"hello", tags="new", keys=["a", "b"])
    watched.send(message, outcomes=(_result(),), seconds=0.01)
    span = watched.span()
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "broker-a:3",
        "messaging.message.id": "7F000001",
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.rocketmq.message.type": "normal",
    }


def test_sent_messages_carry_context_and_baggage(watched: Watched) -> None:
    message = Message("orders", b"hello")
    sent = _sending(message)
    token = context.attach(baggage.set_baggage("tenant", "blue"))
    try:
        watched.hook.before_send(sent)
    finally:
        context.detach(token)
    watched.hook.after_send(sent)
    span = watched.span().get_span_context()
    assert span is not None
    carried = sent.message.properties["traceparent"]
    assert carried == f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    assert sent.message.properties["baggage"] == "tenant=blue"
    assert "traceparent" not in message.properties


def test_the_span_of_a_send_is_a_child_of_the_one_around_it(watched: Watched) -> None:
    with watched.tracers.get_tracer("shop").start_as_current_span("checkout") as around:
        watched.send(Message("orders", b"hello"))
    child = next(span for span in watched.spans() if span.name == "send orders")
    assert child.parent == around.get_span_context()


def test_a_message_that_carries_a_context_keeps_it(watched: Watched) -> None:
    sent = watched.send(Message("orders", b"hello", properties=PARENT))
    span = watched.span()
    assert sent.message.properties["traceparent"] == PARENT["traceparent"]
    assert [link.context.span_id for link in span.links] == [PARENT_SPAN]
    assert span.kind is SpanKind.CLIENT


def test_each_message_of_a_batch_has_a_context_of_its_own(watched: Watched) -> None:
    messages = [Message("orders", b"x") for _ in range(3)]
    sent = watched.send(*messages, mode="send_batch", outcomes=(_result(),) * 3)
    *created, whole = watched.spans()
    carried = [each.properties["traceparent"] for each in sent.messages]
    contexts = [span.get_span_context() for span in created]
    assert [span.name for span in created] == ["create orders"] * 3
    assert [int(each.split("-")[2], 16) for each in carried] == [c.span_id for c in contexts if c]
    assert [link.context for link in whole.links] == contexts
    assert (whole.name, whole.kind) == ("send orders", SpanKind.CLIENT)
    assert _value(whole.attributes, "messaging.batch.message_count") == 3


def test_messages_of_a_batch_without_room_for_a_context_leave_the_others_theirs(
    watched: Watched,
) -> None:
    full = Message("orders", b"x", properties={"filler": "x" * MAX_WITH_ADDED})
    sent = watched.send(full, Message("orders", b"x"), mode="send_batch")

    assert ["traceparent" in each.properties for each in sent.messages] == [False, True]
    assert "send orders" in [span.name for span in watched.spans()]


def test_a_batch_of_several_topics_names_none(watched: Watched) -> None:
    watched.send(Message("orders", b"x"), Message("bills", b"x"), mode="send_batch")
    assert watched.spans()[-1].name == "send"


@pytest.mark.parametrize(
    ("message", "mode", "kind"),
    [
        (Message("orders", b"x", sharding_key="k"), "send", "fifo"),
        (Message("orders", b"x", delay_level=3), "send", "delay"),
        (Message("orders", b"x", delay_seconds=9), "send", "delay"),
        (Message("orders", b"x"), "transaction", "transaction"),
    ],
)
def test_the_message_type_is_an_attribute(
    watched: Watched, message: Message, mode: str, kind: str
) -> None:
    watched.send(message, mode=mode)
    assert _value(watched.span().attributes, "messaging.rocketmq.message.type") == kind


def test_a_failed_send_is_an_error_of_span_and_metrics(watched: Watched) -> None:
    error = SendError("orders", "7F000001", [])
    watched.send(Message("orders", b"x"), error=error, outcomes=(error,), seconds=0.25)
    span = watched.span()
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert watched.points("messaging.client.sent.messages")["SendError"].value == 1
    assert watched.points("messaging.client.operation.duration")["SendError"].sum == 0.25


def test_a_span_ends_when_str_of_the_error_raises(watched: Watched) -> None:
    class WithoutTextError(Exception):
        def __str__(self) -> str:
            raise LookupError("no text")

    with pytest.raises(LookupError):  # the hook runner logs it
        watched.handle(_handling({}), error=WithoutTextError())

    assert watched.span().status.status_code is StatusCode.ERROR
    assert "WithoutTextError" in _value(watched.span().attributes, "error.type")


@pytest.mark.parametrize("count", [1, 2])
def test_spans_end_when_a_propagator_raises(watched: Watched, count: int) -> None:
    class Failing(TraceContextTextMapPropagator):
        def inject(self, *_: object, **__: object) -> None:
            raise LookupError

    hook = OpenTelemetryHook(tracer_provider=watched.tracers, propagator=Failing())
    sent = SendContext(group="shop", mode="send", messages=[Message("orders", b"1")] * count)
    with pytest.raises(LookupError):
        hook.before_send(sent)
    hook.after_send(sent)

    assert len(watched.spans()) == 1


def test_spans_end_when_a_meter_raises(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_sent", "_consumed"):
        monkeypatch.setattr(watched.hook, name, None)
    sent, handled = _sending(Message("orders", b"x")), _handling({})
    watched.hook.before_send(sent)
    watched.hook.before(handled)
    with pytest.raises(AttributeError):  # the hook runner logs it
        watched.hook.after(handled)
    with pytest.raises(AttributeError):
        watched.hook.after_send(sent)

    assert [span.name for span in watched.spans()] == ["process orders", "send orders"]
    assert not trace.get_current_span().get_span_context().is_valid


def test_messages_of_a_batch_are_counted_by_outcome(watched: Watched) -> None:
    outcomes = (_result(), BusyError(2, "busy", "127.0.0.1:1"), _result())
    messages = [Message("orders", b"x") for _ in outcomes]
    watched.send(*messages, mode="send_batch", outcomes=outcomes)
    points = watched.points("messaging.client.sent.messages")
    assert (points[None].value, points["BusyError"].value) == (2, 1)


def test_a_handler_runs_in_a_span_that_continues_the_trace(watched: Watched) -> None:
    handled = _handling({**PARENT, "TAGS": "new", "KEYS": "a"})
    watched.hook.before(handled)
    inside = trace.get_current_span().get_span_context()
    handled.seconds = 0.5
    watched.hook.after(handled)
    span = watched.span()
    assert inside == span.get_span_context()
    assert not trace.get_current_span().get_span_context().is_valid
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (PARENT_TRACE, PARENT_SPAN)
    assert (span.name, span.kind) == ("process orders", SpanKind.CONSUMER)
    assert _value(span.attributes, "messaging.consumer.group.name") == "billing"
    assert watched.points("messaging.process.duration")[None].sum == 0.5


def test_a_batch_links_to_the_traces_of_its_messages(watched: Watched) -> None:
    watched.handle(_handling(PARENT, {}, PARENT))
    span = watched.span()
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [PARENT_SPAN, PARENT_SPAN]
    assert watched.points("messaging.client.consumed.messages")[None].value == 3


@pytest.mark.parametrize("count", [1, 2])
def test_a_handler_without_context_starts_a_trace(watched: Watched, count: int) -> None:
    handled = _handling(*[{}] * count)
    around = watched.tracers.get_tracer("app").start_span("active when the consumer started")
    token = context.attach(baggage.set_baggage("tenant", "blue", trace.set_span_in_context(around)))
    try:
        watched.hook.before(handled)
        inside = trace.get_current_span().get_span_context()
        carried = baggage.get_all()
        watched.hook.after(handled)
        assert trace.get_current_span() is around
    finally:
        context.detach(token)
    span = watched.span()
    assert (span.parent, span.get_span_context()) == (None, inside)
    assert carried == {}


def test_a_handler_that_fails_is_an_error(watched: Watched) -> None:
    watched.handle(_handling({}), error=ValueError("no such order"))
    span = watched.span()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no such order")
    assert watched.points("messaging.process.duration")["ValueError"].count == 1


def test_the_span_of_a_poll_is_never_current(watched: Watched) -> None:
    polled = _handling(PARENT)
    polled.mode = "poll"
    watched.hook.before(polled)
    assert not trace.get_current_span().get_span_context().is_valid
    watched.hook.after(polled)
    span = watched.span()
    assert (span.name, span.kind, span.parent) == ("poll orders", SpanKind.CLIENT, None)
    assert [link.context.span_id for link in span.links] == [PARENT_SPAN]
    assert watched.points("messaging.client.consumed.messages")[None].value == 1


async def test_a_span_that_ends_in_another_task_logs_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    handled = _handling({})

    async def tell(reported: Callable[[ConsumeContext], None]) -> None:
        reported(handled)

    await asyncio.create_task(tell(watched.hook.before))
    await asyncio.create_task(tell(watched.hook.after))
    assert watched.span().name == "process orders"
    assert caplog.records == []


def test_two_hooks_of_one_client_end_their_own_spans(watched: Watched) -> None:
    other = Watched()
    sent, handled = _sending(Message("orders", b"hello")), _handling({})
    watched.hook.before_send(sent)
    other.hook.before_send(sent)
    watched.hook.before(handled)
    other.hook.before(handled)
    for hook in other.hook, watched.hook:  # as clients call them
        hook.after(handled)
        hook.after_send(sent)

    assert not trace.get_current_span().get_span_context().is_valid
    assert [each.name for each in watched.spans()] == ["process orders", "send orders"]
    assert [each.name for each in other.spans()] == ["process orders", "send orders"]


def test_context_of_continues_the_trace_of_a_message(watched: Watched) -> None:
    found = watched.hook.context_of(_received(PARENT, 0))
    assert trace.get_current_span(found).get_span_context().span_id == PARENT_SPAN
    assert watched.hook.context_of(_received({}, 0)) is None


@pytest.mark.parametrize("name", ["tracer_provider", "meter_provider", "propagator"])
@pytest.mark.parametrize("value", ["global", object(), int])
def test_a_provider_of_another_kind_is_rejected(name: str, value: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=f"^{name}=.*expected an object with"):
        OpenTelemetryHook(**{name: value})
