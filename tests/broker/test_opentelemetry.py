"""OpenTelemetry traces through a real broker: the handler continues the sender's trace."""

from __future__ import annotations

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from rocketmq_aio import AutoBatch, Message, MessageExt, Producer, ProducerConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.opentelemetry import OpenTelemetryHook

COUNT = 8


async def test_handlers_continue_the_traces_of_messages_in_and_outside_batches(
    namesrv: str, topic: str, group: str
) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = OpenTelemetryHook(tracer_provider=tracers)
    seen: dict[bytes, SpanContext] = {}
    everything = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        seen[message.body] = trace.get_current_span().get_span_context()
        if len(seen) == 2 * COUNT:
            everything.set()

    config = ProducerConfig(auto_batch=AutoBatch())
    async with Producer(group, namesrv=namesrv, config=config, hooks=[telemetry]) as producer:
        single = [Message(topic, b"single %d" % number) for number in range(COUNT)]
        batch = [Message(topic, b"batch %d" % number) for number in range(COUNT)]
        await asyncio.gather(*(producer.send(message) for message in single))
        await producer.send_batch(batch)
    consumer = PushConsumer(
        group,
        on_message=handle,
        namesrv=namesrv,
        config=PushConfig(start_from="earliest"),
        hooks=[telemetry],
    )
    async with consumer:
        await consumer.subscribe(topic)
        await everything.wait()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    makers = [_maker(spans, each) for body, each in sorted(seen.items())]
    assert [span.name for span in makers] == [f"create {topic}"] * COUNT + [f"send {topic}"] * COUNT
    assert len({span.context.span_id for span in makers if span.context}) == 2 * COUNT


def _maker(spans: dict[int, ReadableSpan], inside: SpanContext) -> ReadableSpan:
    """Return the span that sent the message handled in *inside*."""
    handling = spans[inside.span_id]
    assert handling.parent is not None
    maker = spans[handling.parent.span_id]
    assert maker.context is not None
    assert maker.context.trace_id == inside.trace_id
    return maker
