"""Scripted server in a thread: responses by request code, one request per connection."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

WORDS = struct.Struct(">II")


class Asked(NamedTuple):
    code: int
    fields: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    code: int = 0
    body: bytes = b""
    remark: str | None = None
    ext_fields: Mapping[str, str] = MappingProxyType({})


class AnsweringServer(socketserver.ThreadingTCPServer):
    """*answers* by request code; *raw* bytes instead of a frame, then the end, if given.

    :ivar series: responses one after another, in place of the answer for a code
    """

    allow_reuse_address = True
    daemon_threads = False  # joined when it is closed

    def __init__(self, answers: dict[int, Answer], *, raw: bytes | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answers = answers
        self.raw = raw
        self.series: dict[int, Iterator[Answer]] = {}
        self.asked: list[Asked] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Exchange(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, AnsweringServer)
        length, header_length = WORDS.unpack(self.rfile.read(WORDS.size))
        header = json.loads(self.rfile.read(header_length))
        body = self.rfile.read(length - 4 - header_length)
        server.asked.append(Asked(header["code"], header["extFields"], body))
        if server.raw is None:
            code = header["code"]
            answer = next(server.series[code]) if code in server.series else server.answers[code]
            self.wfile.write(frame(header["opaque"], answer))
        else:
            self.wfile.write(server.raw)


def frame(opaque: int, answer: Answer) -> bytes:
    said = {
        "code": answer.code,
        "opaque": opaque,
        "flag": 1,
        "remark": answer.remark,
        "extFields": dict(answer.ext_fields),
    }
    text = json.dumps(said).encode()
    length = 4 + len(text) + len(answer.body)
    return WORDS.pack(length, len(text)) + text + answer.body


@contextmanager
def answering(answers: dict[int, Answer], *, raw: bytes | None = None) -> Iterator[AnsweringServer]:
    with AnsweringServer(answers, raw=raw) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
