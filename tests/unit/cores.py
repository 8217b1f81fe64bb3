"""The compiled core and its Python reference: switched off, and results made comparable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt

USERS: Final = (
    "rocketmq_aio.consumer.pull_loop.process_queue",
    "rocketmq_aio.consumer.push.workers",
    "rocketmq_aio.producer.batching.explicit_batch",
    "rocketmq_aio.protocol.frame",
    "rocketmq_aio.protocol.record",
)  # modules that use the core


@contextmanager
def using(core: object) -> Iterator[None]:
    """Replace the core in a block; None: Python alone."""
    patches = [patch(f"{module}.core", core) for module in USERS]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def decoded(outcome: tuple[Iterable[MessageExt], CodecError | None]) -> tuple[Any, ...]:
    """Return what `decode_messages` returned, with the types of all values, for comparison."""
    messages, fault = outcome
    fields = [(type(each), *map(typed, msgspec.structs.astuple(each))) for each in messages]
    if fault is None:
        return (fields,)
    return fields, type(fault), fault.field, fault.position, fault.reason, str(fault)


def typed(value: object) -> tuple[type, object]:
    return type(value), value
