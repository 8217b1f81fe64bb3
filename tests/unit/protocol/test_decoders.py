"""Decoders of structs, made when they are used first."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import msgspec
import pytest

from rocketmq_aio.model.codec import JSONCodec, MsgpackCodec
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header

VALUE: Any = {"inner": {"number": 1}}
TEXT = msgspec.json.encode(VALUE)


@pytest.mark.parametrize(
    "decode",
    [
        lambda kind: read_body(TEXT, kind),
        lambda kind: read_header(Command(0, 0, ext=msgspec.Raw(TEXT)), kind),
        lambda kind: read_header(Command(0, 0, ext=VALUE), kind),
        lambda kind: JSONCodec(kind).decode(TEXT),
        lambda kind: MsgpackCodec(kind).decode(msgspec.msgpack.encode(VALUE)),
    ],
    ids=["body", "json-header", "binary-header", "json-codec", "msgpack-codec"],
)
def test_two_threads_may_decode_a_class_first_at_the_same_time(
    decode: Callable[[type], object],
) -> None:
    decoded: list[object] = []
    other = Thread(target=lambda: decoded.append(decode(outer)))

    def resolve() -> type[int]:
        if other.ident is None:
            other.start()
            other.join(0.1)  # it waits for this thread, or crashes the process
        return int

    inner = msgspec.defstruct("inner", [("number", "resolve()")], namespace={"resolve": resolve})
    outer = msgspec.defstruct("outer", [("inner", inner)])
    decoded.append(decode(outer))
    other.join()

    assert decoded == [outer(inner(1))] * 2
