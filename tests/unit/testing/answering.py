"""Scripted server: an embedded name server with given responses by request code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.command import Command


class Asked(NamedTuple):
    code: int
    fields: Mapping[str, str]
    body: bytes


class AnsweringServer:
    """*answers* by request code.

    :ivar series: responses one after another, in place of the answer for a code
    """

    def __init__(self, address: str, answers: dict[int, Response]) -> None:
        self.address = address
        self.answers = answers
        self.series: dict[int, Iterator[Response]] = {}
        self.asked: list[Asked] = []

    def respond(self, command: Command, _: ServerConnection) -> Response:
        code = command.code
        self.asked.append(Asked(code, command.ext_fields(), bytes(command.body)))
        return next(self.series[code]) if code in self.series else self.answers[code]


@contextmanager
def answering(answers: dict[int, Response]) -> Iterator[AnsweringServer]:
    with EmbeddedCluster(0) as cluster:
        server = AnsweringServer(cluster.namesrv, answers)
        cluster.faults.handle(None, server.respond, times=None)
        yield server
