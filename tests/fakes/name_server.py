"""Embedded name server of the fault tests."""

from __future__ import annotations

from typing import Any

from rocketmq_aio.embedded.name_server import EmbeddedNameServer
from tests.fakes.scripted import ScriptedServer


class FakeNameServer(ScriptedServer, EmbeddedNameServer):
    """Records frames; keeps stopped brokers in its routes."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the base
        super().__init__(**options)
        self.keeps_lost_brokers = True
