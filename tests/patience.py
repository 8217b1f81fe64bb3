"""Timeouts of clients whose test sets none."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig

PATIENCE_SECONDS: Final = 60.0
TIMEOUTS: Final = (
    (ClientConfig, "request_timeout_seconds"),
    (ClientConfig, "connect_timeout_seconds"),
    (ProducerConfig, "send_timeout_seconds"),
)


@pytest.fixture(scope="module", autouse=True)
def patient_clients() -> Iterator[None]:
    """Replace the defaults of 3 s; a test that needs a timeout to end sets it.

    Clients and servers share the process of the test, which a busy machine stops for seconds.
    """
    with pytest.MonkeyPatch.context() as patched:
        for config, name in TIMEOUTS:
            defaults = inspect.unwrap(config.__init__).__kwdefaults__
            patched.setitem(defaults, name, PATIENCE_SECONDS)
        yield
