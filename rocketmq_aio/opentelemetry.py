"""OpenTelemetry hook: spans, metrics, and W3C trace context in message properties.

Needs the extra ``rocketmq-aio[otel]``.  Names follow the semantic conventions of OpenTelemetry for
messaging and for RocketMQ (status: development), as of version 1.37.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from opentelemetry import context as current, propagate
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from rocketmq_aio.errors import ConfigError, InvalidMessageError
from rocketmq_aio.hooks import ConsumeContext, SendContext
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import DELAY, KEYS, TAGS
from rocketmq_aio.model.values import MessageQueue, SendResult

SCOPE: Final = "rocketmq_aio"
HANDLE: Final = "handle"  # mode of messages passed to a handler
SENDS: Final = {"send_nowait": "send", "send_oneway": "send", "send_batch": "send"}
# Bucket boundaries recommended by the conventions for durations in seconds.
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

Attributes = dict[str, Any]


class OpenTelemetryHook:
    """Creates spans and metrics; for ``hooks=[...]`` of producers and consumers.

    One object serves any number of clients.  Sent messages carry the context of their span
    (``traceparent`` and others of the propagator) in properties.  A handler runs in a span that
    continues the message's trace, or links to the traces of a batch; without a context it starts a
    trace.  A message that already has a context keeps it, and the span of its send links to it.

    :param tracer_provider: default: the global one
    :param meter_provider: default: the global one
    :param propagator: default: the global one, W3C trace context and baggage unless configured
    :raises ConfigError: one is of another kind
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._note = f"opentelemetry-{id(self)}"  # in a context; a client may have two hooks
        _check("tracer_provider", tracer_provider, "get_tracer")
        _check("meter_provider", meter_provider, "get_meter")
        _check("propagator", propagator, "inject")
        self._tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._propagator = propagator
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that a producer tried to send"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages given to a handler"
        )
        histogram = partial(
            meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=SECONDS
        )
        self._sending = histogram(
            "messaging.client.operation.duration", description="How long sends took"
        )
        self._handling = histogram(
            "messaging.process.duration", description="How long handlers took"
        )

    # --- sending --------------------------------------------------------------------------------

    def before_send(self, context: SendContext) -> None:
        """Start a span and inject its context into the messages."""
        attributes = _of_send(context)
        carried = [self._carried(message.properties) for message in context.messages]
        links = _links(carried)
        if len(context.messages) == 1:
            kind = SpanKind.CLIENT if links else SpanKind.PRODUCER
            attributes |= _of_message(context.message, context.mode)
            context.notes[self._note] = span = self._start(attributes, kind, links)
            if not links:
                self._inject(context, 0, span)
        else:
            attributes["messaging.batch.message_count"] = len(context.messages)
            links += self._create_each(context, carried)
            context.notes[self._note] = self._start(attributes, SpanKind.CLIENT, links)

    def after_send(self, context: SendContext) -> None:
        """End the span and record metrics."""
        span: Span | None = context.notes.pop(self._note, None)
        try:
            measured = _of_send(context)
            if context.error is not None:
                measured["error.type"] = type(context.error).__qualname__
            self._sending.record(context.seconds or 0.0, measured)
            self._count_sent(context)
        finally:  # a meter may raise
            if span is not None:
                if len(context.messages) == 1 and (result := context.result) is not None:
                    span.set_attributes(_of_place(result.queue, result.message_id))
                _end(span, context.error)

    def _count_sent(self, context: SendContext) -> None:
        failed: dict[str | None, int] = {}
        for outcome in context.outcomes or (context.error,) * len(context.messages):
            good = outcome is None or isinstance(outcome, SendResult)
            kind = None if good else type(outcome).__qualname__
            failed[kind] = failed.get(kind, 0) + 1
        for kind, count in failed.items():
            attributes = _of_send(context) | ({} if kind is None else {"error.type": kind})
            self._sent.add(count, attributes)

    def _create_each(self, context: SendContext, carried: Sequence[Context | None]) -> list[Link]:
        """Inject a context into each message of a batch; return links to them."""
        links = []
        for place, message in enumerate(context.messages):
            if carried[place] is not None:
                continue
            attributes = _of_destination(message.topic, "create", "create")
            attributes |= _of_message(message, context.mode)
            span = self._start(attributes, SpanKind.PRODUCER, [])
            try:
                with suppress(InvalidMessageError):  # one has no room for it, the others have
                    self._inject(context, place, span)
            finally:
                span.end()
            links.append(Link(span.get_span_context()))
        return links

    def _inject(self, context: SendContext, place: int, span: Span) -> None:
        carrier: dict[str, str] = {}
        inject: Callable[..., None] = self._textmap().inject  # typed as if it took no dict
        inject(carrier, set_span_in_context(span))
        if carrier:
            context.add_properties(carrier, place)

    # --- handling -------------------------------------------------------------------------------

    def before(self, context: ConsumeContext) -> None:
        """Start the span in which the handler runs.

        The span of a poll links to its messages, ends before the caller processes them, and is
        never current.
        """
        carried = [self._carried(message.properties) for message in context.messages]
        attributes = _of_handling(context)
        if context.mode != HANDLE:
            span = self._start(attributes, SpanKind.CLIENT, _links(carried))
            context.notes[self._note] = span, None, None
            return
        # A worker runs in the context of the consumer's start: a handler whose message has no
        # context must start a new trace.
        parent = (carried[0] if len(context.messages) == 1 else None) or Context()
        span = self._start(attributes, SpanKind.CONSUMER, _links(carried), parent)
        token = current.attach(set_span_in_context(span, parent))
        context.notes[self._note] = span, token, _task()

    def after(self, context: ConsumeContext) -> None:
        """End the span and record metrics."""
        measured = _of_destination(context.topic, *_operation(context))
        measured["messaging.consumer.group.name"] = context.group
        try:
            self._consumed.add(len(context.messages), measured)
            if context.error is not None:
                measured = measured | {"error.type": type(context.error).__qualname__}
            if context.mode == HANDLE:
                self._handling.record(context.seconds or 0.0, measured)
        finally:  # a meter may raise
            if self._note in context.notes:
                span, token, task = context.notes.pop(self._note)
                # A context attached in another task ends with that task.
                if token is not None and task is _task():
                    current.detach(token)
                _end(span, context.error)

    def context_of(self, message: MessageExt) -> Context | None:
        """Return the context in *message*, for applications that poll and create spans.

        ``tracer.start_as_current_span("work", hook.context_of(message))`` continues its trace.
        """
        return self._carried(message.properties)

    def _textmap(self) -> TextMapPropagator:
        return self._propagator or propagate.get_global_textmap()

    def _carried(self, properties: Mapping[str, str]) -> Context | None:
        """Return the context in *properties*, or None."""
        found = self._textmap().extract(properties, Context())
        return found if get_current_span(found).get_span_context().is_valid else None

    def _start(
        self,
        attributes: Attributes,
        kind: SpanKind,
        links: Sequence[Link],
        parent: Context | None = None,
    ) -> Span:
        operation = attributes["messaging.operation.name"]
        destination = attributes.get("messaging.destination.name")
        name = f"{operation} {destination}" if destination else operation
        return self._tracer.start_span(name, parent, kind, attributes, links)


def _links(contexts: Iterable[Context | None]) -> list[Link]:
    return [
        Link(get_current_span(each).get_span_context()) for each in contexts if each is not None
    ]


def _end(span: Span, error: BaseException | None) -> None:
    try:
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
    finally:  # str() of an application's error may raise
        span.end()


def _operation(context: ConsumeContext) -> tuple[str, str]:
    return ("process", "process") if context.mode == HANDLE else (context.mode, "receive")


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no running loop
        return None


def _of_destination(topic: str | None, name: str, kind: str) -> Attributes:
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _of_send(context: SendContext) -> Attributes:
    """Return the attributes of a send call; the topic only if all messages share it."""
    first = context.message.topic
    one = all(message.topic == first for message in context.messages)
    return _of_destination(first if one else None, SENDS.get(context.mode, context.mode), "send")


def _of_message(message: Message, mode: str) -> Attributes:
    properties = message.properties
    attributes = _of_content(properties.get(TAGS), tuple(properties.get(KEYS, "").split()))
    attributes["messaging.message.body.size"] = len(message.body)
    kind = "transaction" if mode == "transaction" else "normal"
    if message.timed or DELAY in properties:
        kind = "delay"
    elif message.sharding_key is not None:
        kind = "fifo"
        attributes["messaging.rocketmq.message.group"] = message.sharding_key
    attributes["messaging.rocketmq.message.type"] = kind
    return attributes


def _of_handling(context: ConsumeContext) -> Attributes:
    attributes = _of_destination(context.topic, *_operation(context))
    attributes["messaging.consumer.group.name"] = context.group
    if len(context.messages) > 1:
        attributes["messaging.batch.message_count"] = len(context.messages)
        return attributes
    message: MessageExt = context.messages[0]
    attributes |= _of_content(message.tags, message.keys)
    attributes |= _of_place(message.queue, message.message_id)
    attributes["messaging.message.body.size"] = len(message.body)
    return attributes


def _of_content(tags: str | None, keys: Sequence[str]) -> Attributes:
    attributes: Attributes = {}
    if tags is not None:
        attributes["messaging.rocketmq.message.tag"] = tags
    if keys:
        attributes["messaging.rocketmq.message.keys"] = list(keys)
    return attributes


def _of_place(queue: MessageQueue, message_id: str) -> Attributes:
    return {
        "messaging.message.id": message_id,
        "messaging.destination.partition.id": f"{queue.broker_name}:{queue.queue_id}",
    }


def _check(setting: str, value: object, method: str) -> None:
    is_made = not isinstance(value, type) and callable(getattr(value, method, None))
    if value is not None and not is_made:
        raise ConfigError(setting, value, f"expected an object with {method}()")
