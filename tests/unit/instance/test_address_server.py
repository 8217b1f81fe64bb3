"""Address server: the list of name servers from a web page."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

from rocketmq_aio.errors import NameServerUnavailableError
from rocketmq_aio.instance.address_server import fetch_addresses


def test_a_resolver_without_threads_makes_the_address_server_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async def fetch() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(NameServerUnavailableError, match="can't start new thread"):
                await fetch_addresses("http://localhost:1/rocketmq/nsaddr", 10)

    # Not on uvloop, which resolves in threads of its own.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(fetch())
