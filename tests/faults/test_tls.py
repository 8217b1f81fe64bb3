"""TLS: accepted and rejected peers, and their errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import NotConnectedError, RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.fakes.tls import CERTIFICATES, client_context, server_context
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.clients import CODE, Opened, open_client
from tests.unit.remoting.until import succeeds, until_done

SHORT = 0.3


@asynccontextmanager
async def secured(
    certificate: str = "localhost", *, tls: ssl.SSLContext | bool | None = None, **settings: float
) -> AsyncIterator[tuple[FakeBroker, Opened]]:
    """Yield a broker with a certificate, and a client configured by *tls*."""
    trusted = client_context(certificate) if tls is None else tls
    config = ClientConfig(tls=trusted, **settings)  # type: ignore[arg-type]  # numbers
    async with nothing_left(), FakeBroker(tls=server_context(certificate)) as broker:
        broker.faults.handle(CODE, Response(), times=None)
        async with open_client(config) as opened:
            yield broker, opened


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_trusted_certificate_for_the_right_name_is_accepted(host: str) -> None:
    async with secured() as (broker, opened):
        answers = await asyncio.gather(*(opened.ask(f"{host}:{broker.port}") for _ in range(20)))

        assert {answer.code for answer in answers} == {0}
        assert len(broker.connects) == 1


@pytest.mark.parametrize(
    ("certificate", "trusted", "reason"),
    [
        ("localhost", client_context("elsewhere"), "certificate verify failed"),
        ("localhost", True, "certificate verify failed"),
        ("elsewhere", client_context("elsewhere"), "is not valid for|doesn't match"),
        ("expired", client_context("expired"), "expired"),
    ],
    ids=["untrusted", "not of the system", "wrong name", "expired"],
)
async def test_an_untrusted_certificate_is_rejected(
    certificate: str, trusted: ssl.SSLContext | bool, reason: str
) -> None:
    async with secured(certificate, tls=trusted) as (broker, opened):
        with pytest.raises(NotConnectedError, match=reason) as caught:
            await opened.ask(broker.address)

        assert "TLS handshake failed" in caught.value.reason
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        assert broker.requests == []


async def test_certificates_that_a_context_loads_later_are_used_by_new_connections() -> None:
    served, context = server_context(), client_context()
    served.verify_mode = ssl.CERT_REQUIRED
    served.load_verify_locations(CERTIFICATES / "localhost.pem")
    # With TLS 1.3 a client learns after the handshake that its certificate was rejected.
    served.maximum_version = ssl.TLSVersion.TLSv1_2
    async with nothing_left(), FakeBroker(tls=served) as broker:
        broker.faults.handle(CODE, Response(), times=None)
        async with open_client(ClientConfig(tls=context)) as opened:
            with pytest.raises(NotConnectedError, match="TLS handshake"):
                await opened.ask(broker.address)
            context.load_cert_chain(CERTIFICATES / "localhost.pem")
            await until_done(lambda: succeeds(opened.ask(broker.address)))

        assert len(broker.requests_of(CODE)) == 1


async def test_the_connected_host_name_is_verified() -> None:
    async with FakeBroker(tls=server_context()) as broker:
        broker.faults.handle(CODE, Response(), times=None)
        config = ClientConfig(
            tls=client_context(), address_mapper=lambda _: f"localhost:{broker.port}"
        )
        async with open_client(config) as opened:
            assert (await opened.ask("elsewhere.example:10911")).code == 0


async def test_a_client_never_falls_back_to_plain_text() -> None:
    config = ClientConfig(tls=client_context())
    async with nothing_left(), FakeBroker() as plain, open_client(config) as opened:
        with pytest.raises(NotConnectedError):
            await opened.ask(plain.address)

        assert plain.requests == []


async def test_a_plain_text_client_gets_no_data_from_a_tls_port() -> None:
    async with secured() as (broker, _), open_client() as plain:
        with pytest.raises(RocketMQError):
            await plain.ask(broker.address, timeout=SHORT)

        assert broker.requests == []


async def test_a_server_of_another_protocol_fails_the_handshake() -> None:
    config = ClientConfig(tls=client_context())
    async with nothing_left(), FakeBroker() as broker, open_client(config) as opened:
        broker.faults.connect(data=b"HTTP/1.1 400 Bad Request\r\n\r\n", close=False)

        with pytest.raises(NotConnectedError, match="TLS handshake failed"):
            await opened.ask(broker.address)


async def test_a_stalled_handshake_ends_with_the_connect_timeout() -> None:
    async with (
        secured(connect_timeout_seconds=0.2) as (broker, _),
        FaultProxy(broker.address) as proxy,
    ):
        proxy.down.stall()
        config = ClientConfig(tls=client_context(), connect_timeout_seconds=0.2)
        async with open_client(config) as opened:
            with Stopwatch() as passed, pytest.raises(NotConnectedError, match="connect timeout"):
                await opened.ask(proxy.address)

            assert passed.seconds < 1.0
            proxy.flow()
            await until_done(lambda: succeeds(opened.ask(proxy.address)))


@pytest.mark.parametrize("least", [ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_3])
async def test_insecure_tls_versions_are_rejected(
    least: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = ssl.create_default_context

    def by_distribution(**options: Any) -> ssl.SSLContext:  # noqa: ANN401
        context = default(**options)
        context.minimum_version = least
        return context

    monkeypatch.setattr(ssl, "create_default_context", by_distribution)
    config = ClientConfig(tls=True)
    async with open_client(config) as opened:
        context = opened.client._dialer._ssl

        assert isinstance(context, ssl.SSLContext)
        assert context.minimum_version == max(least, ssl.TLSVersion.TLSv1_2)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


async def test_large_responses_and_cancelled_callers_keep_the_stream_intact() -> None:
    async with secured() as (broker, opened):
        broker.faults.handle(CODE, Response(body=bytes(300_000)), times=None)
        asked = [asyncio.create_task(opened.ask(broker.address)) for _ in range(60)]
        for number, task in enumerate(asked):
            if number % 3 == 0:
                await asyncio.sleep(0)
                task.cancel()
        await asyncio.wait(asked)

        answered = [task for task in asked if not task.cancelled()]
        assert len(answered) >= 40
        assert {len(task.result().body) for task in answered} == {300_000}
        assert len(broker.connects) == 1


async def test_a_cut_tls_stream_is_reconnected() -> None:
    async with (
        secured() as (broker, _),
        FaultProxy(broker.address) as proxy,
        open_client(ClientConfig(tls=client_context())) as opened,
    ):
        for reset in (False, True):
            await until_done(lambda: succeeds(opened.ask(proxy.address)))
            broker.faults.drop(CODE, executed=False)
            asked = asyncio.create_task(opened.ask(proxy.address))
            await broker.wait_for(CODE, len(broker.requests_of(CODE)) + 1)
            proxy.cut(reset=reset)
            with pytest.raises(RocketMQError):
                await asked

        await until_done(lambda: succeeds(opened.ask(proxy.address)))


async def test_messages_are_sent_and_received_over_tls() -> None:
    async with nothing_left(), FakeCluster(tls=server_context(), topics={"orders": 4}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, tls=client_context())
        async with Producer("shop", client=config) as producer:
            message = Message("orders", b"secret")
            results = await asyncio.gather(*(producer.send(message) for _ in range(50)))

        assert all(result.ok for result in results)
        assert len(cluster.broker.messages("orders")) == 50


async def test_a_replaced_certificate_is_used_by_the_next_connection() -> None:
    authority = client_context("localhost", "elsewhere")
    authority.check_hostname = False
    async with FakeBroker(tls=server_context("localhost")) as broker:
        broker.faults.handle(CODE, Response(), times=None)
        async with open_client(ClientConfig(tls=authority)) as opened:
            await opened.ask(broker.address)
            await broker.stop()
            broker._tls = server_context("elsewhere")
            await broker.start()

            await until_done(lambda: succeeds(opened.ask(broker.address)))
