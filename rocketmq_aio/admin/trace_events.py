"""Trace events: decodes the records of message traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rocketmq_aio.admin.results import time_of
from rocketmq_aio.admin.server_results import TraceEvent
from rocketmq_aio.model.message import MessageExt

NUMBER: Final = re.compile(r"[0-9]{1,20}")  # who sends to the trace topic chooses how long
FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
NOTHING: Final = "null"
# The fields of each kind of record, after its name; later releases added the last ones.
FIELDS: Final = {
    "Pub": (
        "time region group topic message_id tags keys store_host size cost kind offset_id success"
    ),
    "SubBefore": "time region group request_id message_id retries keys",
    "SubAfter": "request_id message_id cost success keys outcome time group",
    "EndTransaction": (
        "time region group topic message_id tags keys store_host kind transaction_id state checked"
    ),
    "Recall": "time region group topic message_id success",
}
TEXTS: Final = ("message_id", "group", "topic", "store_host", "keys", "tags", "request_id", "state")


def trace_events(stored: MessageExt, message_id: str) -> Iterator[TraceEvent]:
    """Yield the events of *message_id* in a message of the trace topic; skip unknown kinds."""
    for record in stored.body.decode(errors="replace").split(RECORD_END):
        kind, *values = record.split(FIELD_END)
        if kind in FIELDS:
            event = _event(kind, values, stored.born_host)
            if event.message_id == message_id:
                yield event


def _event(kind: str, values: Sequence[str], host: str) -> TraceEvent:
    names = FIELDS[kind].split()
    if kind == "Pub" and len(values) < len(names):  # of an old client
        names.remove("offset_id")
    named = dict(zip(names, values, strict=False))
    text = {name: "" if value == NOTHING else value for name, value in named.items()}
    success = text.get("success")
    return TraceEvent(
        kind=kind,
        time=time_of(_number(text.get("time")) or 0),
        success=None if success is None else success == "true",
        cost_millis=_number(text.get("cost")),
        client_host=host,
        retries=_number(text.get("retries")),
        **{name: text.get(name, "") for name in TEXTS},
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and NUMBER.fullmatch(text) else None
