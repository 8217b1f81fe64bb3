"""Closes the Spark clients of each test: they would send requests to stopped servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketmq_aio.spark import runtime as runtime_module


@pytest.fixture(autouse=True)
def no_client_goes_on() -> Iterator[None]:
    yield
    runtimes = runtime_module._process.runtimes
    for runtime in runtimes.values():
        for producer in runtime._producers:
            runtime.call(producer.client.close)
        runtime.call(runtime.instance.close)
    runtimes.clear()
