"""Embedded broker of the fault tests."""

from __future__ import annotations

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from tests.fakes.scripted import ScriptedServer


class FakeBroker(ScriptedServer, EmbeddedBroker):
    """Records frames."""
