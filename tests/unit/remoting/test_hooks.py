"""RPC hooks around requests and responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping

import pytest

from rocketmq_aio.config.client import ClientConfig
from tests.fakes.broker import FakeBroker
from tests.unit.remoting.clients import open_client


class Recorder:
    """A hook that writes down what it sees, and adds a field."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self._seen = seen

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        self._seen.append(f"{self.name} before {code} {sorted(ext_fields)}")
        ext_fields[self.name] = "yes"

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        self._seen.append(f"{self.name} after {code} {response_code}")


class Failing(Recorder):
    """Changes something, then fails."""

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        ext_fields.clear()
        raise LookupError("before")

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        raise LookupError("after")


class Cancelling(Recorder):
    """Lets the cancellation of something else through."""

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        raise asyncio.CancelledError

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        raise asyncio.CancelledError


class Numbering(Recorder):
    """Adds what no header can hold."""

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        ext_fields["number"] = 5  # type: ignore[assignment]  # that is the point


class HalfPair(Recorder):
    """Adds text that cannot be encoded."""

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        ext_fields["text"] = "\ud800"


async def test_hooks_run_in_order_around_every_request() -> None:
    seen: list[str] = []
    config = ClientConfig(rpc_hooks=(Recorder("first", seen), Recorder("second", seen)))
    async with FakeBroker() as broker, open_client(config) as opened:
        broker.create_topic("orders")
        await opened.ask(broker.address)

        assert seen == [
            "first before 30 ['queueId', 'topic']",
            "second before 30 ['first', 'queueId', 'topic']",
            "first after 30 0",
            "second after 30 0",
        ]
        assert broker.requests[0].command.ext_fields()["second"] == "yes"


@pytest.mark.parametrize("kind", [Failing, Numbering, HalfPair, Cancelling])
async def test_a_hook_that_fails_is_logged_and_changes_nothing(
    kind: type[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    hooks = (Recorder("good", []), kind("bad", []))
    async with FakeBroker() as broker, open_client(ClientConfig(rpc_hooks=hooks)) as opened:
        broker.create_topic("orders")
        with caplog.at_level(logging.ERROR, "rocketmq_aio"):
            answer = await opened.ask(broker.address)

        assert answer.ext_fields() == {"offset": "0"}
        fields = broker.requests[0].command.ext_fields()
        assert fields == {"topic": "orders", "queueId": "0", "good": "yes"}
        assert "rpc_hook_failed" in caplog.text


@pytest.mark.parametrize("kind", [Failing, Numbering])
async def test_each_kind_of_failure_of_a_hook_is_logged_once(
    kind: type[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    config = ClientConfig(rpc_hooks=(kind("bad", []),))
    async with FakeBroker() as broker, open_client(config) as opened:
        broker.create_topic("orders")
        for _ in range(5):
            await opened.ask(broker.address)

    events = [each for each in caplog.messages if "rpc_hook_failed" in each]
    assert len(events) == 1
    assert kind.__name__ in events[0]
