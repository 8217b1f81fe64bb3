"""AdminClient with access control: allowed accounts, and the error of each other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from rocketmq_aio import (
    AdminClient,
    AuthError,
    ClientConfig,
    Credentials,
    Message,
    PermissionDeniedError,
    Producer,
)
from rocketmq_aio.testing import Account, Cluster
from tests.unit.remoting.until import until_done

TOPIC: Final = "guarded-orders"
ADMIN: Final = Account(access_key="administrator", secret_key="admin-canary", admin=True)
SHOP: Final = Account(
    access_key="shop-account", secret_key="canary-5d1e88a0", topics={TOPIC: "PUB|SUB"}, groups={}
)
SECONDS: Final = 30.0


@pytest.fixture(scope="module")
def acl_cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster with access control."""
    return fresh_cluster(accounts=[ADMIN, SHOP])


def config(cluster: Cluster, credentials: Credentials | None) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv, credentials=credentials)


async def test_an_administrator_account_is_allowed_and_finds_messages_by_id(
    acl_cluster: Cluster,
) -> None:
    allowed = config(acl_cluster, ADMIN.credentials)
    async with AdminClient(client=allowed) as admin, Producer("till", client=allowed) as producer:
        await admin.create_topic(TOPIC, queues=2)
        await admin.create_group("guarded-group")
        sent = await producer.send(Message(TOPIC, b"one", keys="forty-two"))

        async def found() -> bool:
            by_id = await admin.find_message(TOPIC, sent.message_id)
            by_key = await admin.query_messages(TOPIC, "forty-two")
            return [each.body for each in by_id + by_key] == [b"one", b"one"]

        await until_done(found, "the message", SECONDS)
        assert (await admin.topic_stats(TOPIC)).count == 1
        assert len(await admin.reset_offsets("guarded-group", TOPIC, "latest")) == 2


@pytest.mark.parametrize(
    "credentials", [Credentials(access_key="administrator", secret_key="wrong-secret"), None]
)
async def test_requests_without_credentials_are_rejected(
    acl_cluster: Cluster, credentials: Credentials | None
) -> None:
    async with AdminClient(client=config(acl_cluster, credentials)) as admin:
        for refused in (
            admin.create_topic("never-made"),
            admin.delete_topic(TOPIC),
            admin.create_group("never-made"),
            admin.group_progress("guarded-group"),
            admin.broker_stats(),
        ):
            with pytest.raises(AuthError) as caught:
                await refused
            assert "wrong-secret" not in str(caught.value)


async def test_an_account_without_admin_rights_is_denied(acl_cluster: Cluster) -> None:
    async with AdminClient(client=config(acl_cluster, SHOP.credentials)) as admin:
        for refused in (admin.create_topic("never-made"), admin.delete_group("guarded-group")):
            with pytest.raises(PermissionDeniedError):
                await refused
