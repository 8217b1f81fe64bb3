"""TLS on real servers: accepted and rejected peers, and errors within the deadline."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio import (
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    NameServerUnavailableError,
    NotConnectedError,
    Producer,
    PushConfig,
    PushConsumer,
)
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.testing import Cluster, ServerTLS, probe
from rocketmq_aio.testing.jvm import JVMBackend
from rocketmq_aio.testing.security import Security
from tests.broker.certificates import EXPIRED, Authority
from tests.unit.remoting.until import until

TOPIC: Final = "orders"
SPARE_SECONDS: Final = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="module")
def secured(fresh_cluster: Callable[..., Cluster], authority: Authority) -> Cluster:
    """Servers that close plain connections."""
    return started(fresh_cluster, authority.server("servers"))


@pytest.fixture(scope="module")
def mutual(fresh_cluster: Callable[..., Cluster], authority: Authority) -> Cluster:
    """Servers that require a client certificate."""
    return started(fresh_cluster, authority.server("both", clients=authority))


def started(start: Callable[..., Cluster], tls: ServerTLS) -> Cluster:
    cluster = start(tls=tls)
    cluster.create_topic(TOPIC, queues=2)
    return cluster


def trusting(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Return a value for ``tls=`` that verifies certificate and host name."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def refused(config: ClientConfig) -> RocketMQError:
    """Return the error of a producer start, raised within the deadline."""
    producer = Producer("till", client=config)
    async with asyncio.timeout(config.request_timeout_seconds + SPARE_SECONDS):
        with pytest.raises(NameServerUnavailableError) as caught:
            await producer.start()
    [cause] = caught.value.addresses.values()
    assert isinstance(cause, RocketMQError)
    return cause


async def used(config: ClientConfig, group: str) -> None:
    """Send, poll and handle a message."""
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)

    async with (
        Producer("till", client=config) as producer,
        LitePullConsumer(
            f"{group}-lite", client=config, config=LitePullConfig(start_from="earliest")
        ) as consumer,
        PushConsumer(
            f"{group}-push",
            on_message=handle,
            client=config,
            config=PushConfig(start_from="earliest"),
        ) as pushed,
    ):
        await consumer.subscribe(TOPIC)
        await pushed.subscribe(TOPIC)
        body = group.encode() + bytes(100_000)
        await producer.send(Message(TOPIC, body))
        polled: list[bytes] = []
        async with asyncio.timeout(60):
            while body not in polled:
                polled += [message.body for message in await consumer.poll(1)]
        await until(lambda: body in seen, "the handler has it", 60)


async def test_a_client_with_the_ca_connects(
    secured: Cluster, authority: Authority, group: str
) -> None:
    await used(ClientConfig(namesrv=secured.namesrv, tls=trusting(authority)), group)


async def test_mqadmin_connects_over_tls(secured: Cluster) -> None:
    assert "broker-a" in await asyncio.to_thread(secured.mqadmin, "clusterList")


@pytest.mark.parametrize("tls", ["another authority", "authorities of the system"])
async def test_servers_of_another_ca_are_rejected(
    secured: Cluster, stranger: Authority, tls: str
) -> None:
    context = trusting(stranger) if tls == "another authority" else True
    cause = await refused(ClientConfig(namesrv=secured.namesrv, tls=context))

    assert isinstance(cause, NotConnectedError)
    assert "TLS handshake failed" in cause.reason
    assert "certificate verify failed" in cause.reason


async def test_a_client_without_verification_connects(secured: Cluster, group: str) -> None:
    careless = ssl.create_default_context()
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE

    await used(ClientConfig(namesrv=secured.namesrv, tls=careless), group)


async def test_a_certificate_unknown_to_the_system_store_is_rejected(secured: Cluster) -> None:
    cause = await refused(ClientConfig(namesrv=secured.namesrv, tls=True))

    assert "certificate" in str(cause)


async def test_a_certificate_is_valid_for_its_names(secured: Cluster, authority: Authority) -> None:
    port = secured.namesrv.rpartition(":")[2]
    config = ClientConfig(namesrv=f"localhost:{port}", tls=trusting(authority))
    cause = await refused(config)

    assert isinstance(cause, NotConnectedError)
    assert "not valid for 'localhost'" in cause.reason


@pytest.fixture
def expired_namesrv(rocketmq_version: str, authority: Authority) -> Iterator[str]:
    """A name server with a certificate that expired yesterday."""
    tls = authority.server("expired", days=EXPIRED)
    with closing(JVMBackend(rocketmq_version, Security(tls=tls))) as backend:
        launched = backend.namesrv("namesrv-a")
        blind = ssl.create_default_context()
        blind.check_hostname = False
        blind.verify_mode = ssl.CERT_NONE
        access = probe.Access(tls=blind)
        probe.wait_until(
            lambda: probe.masters(launched.address, TOPIC, access), seconds=120, what="not ready"
        )
        yield launched.address


@pytest.mark.needs_real_broker("it starts one Java name server")
async def test_an_expired_certificate_is_named_in_the_error(
    expired_namesrv: str, authority: Authority
) -> None:
    cause = await refused(ClientConfig(namesrv=expired_namesrv, tls=trusting(authority)))

    assert isinstance(cause, NotConnectedError)
    assert "certificate has expired" in cause.reason


async def test_a_plain_text_client_is_disconnected(secured: Cluster) -> None:
    cause = await refused(ClientConfig(namesrv=secured.namesrv))

    assert "closed by the peer without a response; it may require TLS" in str(cause)


@pytest.fixture
def plain_namesrv(rocketmq_version: str) -> Iterator[str]:
    """A name server that closes TLS connections."""
    with closing(JVMBackend(rocketmq_version)) as backend:
        launched = backend.namesrv("namesrv-a")
        probe.wait_until(
            lambda: probe.masters(launched.address, TOPIC), seconds=120, what="not ready"
        )
        yield launched.address


@pytest.mark.needs_real_broker("it starts one Java name server")
async def test_a_server_without_tls_is_named_in_the_error(
    plain_namesrv: str, authority: Authority
) -> None:
    cause = await refused(ClientConfig(namesrv=plain_namesrv, tls=trusting(authority)))

    assert isinstance(cause, NotConnectedError)
    assert "closed by the peer during the TLS handshake" in cause.reason


async def test_mutual_tls_connects(mutual: Cluster, authority: Authority, group: str) -> None:
    client = authority.sign("client")

    await used(ClientConfig(namesrv=mutual.namesrv, tls=trusting(authority, client)), group)


@pytest.mark.needs_real_broker("asyncio servers send no TLS alert before they close")
async def test_a_required_client_certificate_that_is_missing_is_an_error(
    mutual: Cluster, authority: Authority, stranger: Authority
) -> None:
    for certificate in (None, stranger.sign("unknown-client")):
        config = ClientConfig(namesrv=mutual.namesrv, tls=trusting(authority, certificate))
        cause = await refused(config)

        assert "[SSL: " in str(cause)
        assert "alert" in str(cause)  # the server chooses which
