"""Fixtures shared by the tests of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import anyio
import pytest
import pytest_asyncio

from rocketmq_aio.consumer.pull_loop import puller as puller_module
from rocketmq_aio.remoting.backoff import Backoff
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC
from tests.unit.consumer.puller_env import PullerEnv


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with the topic."""
    async with FakeCluster(topics={TOPIC: 4}) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def make_env() -> AsyncIterator[Callable[..., PullerEnv]]:
    """Makes make_env with the settings of a test, and stops them."""
    made: list[PullerEnv] = []

    def make(**settings: object) -> PullerEnv:
        made.append(PullerEnv(**settings))
        return made[-1]

    yield make
    for env in made:
        await env.close()


@pytest.fixture
def env(make_env: Callable[..., PullerEnv]) -> PullerEnv:
    return make_env()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short where their length is not what is tested."""
    monkeypatch.setattr(puller_module, "Backoff", lambda *_, **__: Backoff(0.001, 0.002))
    monkeypatch.setattr(puller_module, "LEAST_EMPTY_SECONDS", 0.001)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that pull loops want to pause, one after another; each pause ends at once."""
    wanted: list[float] = []

    async def pause(seconds: float) -> None:
        wanted.append(seconds)
        await asyncio.sleep(0)

    timeless = SimpleNamespace(sleep=pause, CancelScope=anyio.CancelScope)
    monkeypatch.setattr(puller_module, "anyio", timeless)
    return wanted
