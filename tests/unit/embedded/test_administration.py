"""What embedded servers tell administrators of themselves, and what they let them change."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest

from rocketmq_aio import (
    AdminClient,
    BrokerError,
    ClientConfig,
    ConfigError,
    Message,
    MessageQueue,
    PermissionDeniedError,
    Producer,
)
from rocketmq_aio.embedded import EmbeddedCluster
from rocketmq_aio.protocol.requests.operations import GetConsumeQueue
from rocketmq_aio.protocol.subscription import java_hash
from rocketmq_aio.testing import Account
from tests.fakes.raw_client import RawClient

TOPIC: Final = "orders"
QUEUE: Final = MessageQueue(TOPIC, "broker-a", 0)
ADMIN: Final = Account(access_key="administrator", secret_key="admin-secret", admin=True)
APP: Final = Account(access_key="application", secret_key="app-secret")
OTHER: Final = Account(access_key="other-application", secret_key="app-secret")
SUBJECT: Final = "User:application"


@pytest.fixture(params=["4.9.7", "5.5.0"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(version=request.param, replicas=1, topics={TOPIC: 1}) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        yield admin


async def test_a_replica_describes_itself_as_a_slave(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    settings = await admin.brokers.config(replicas=True)

    names = ("brokerId", "brokerRole", "listenPort")
    broker, replica = cluster.broker, cluster.broker.replicas[0]
    assert [[table[name] for name in names] for table in settings.values()] == [
        ["0", "ASYNC_MASTER", str(broker.port)],
        ["1", "SLAVE", str(replica.port)],
    ]


async def test_replication_is_that_of_the_present_master() -> None:
    async with (
        EmbeddedCluster(replicas=1) as cluster,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        old, new = cluster.broker, cluster.broker.replicas[0]
        before = await admin.brokers.ha_status()
        new.promote()
        after = await admin.brokers.ha_status()
        old.kill()
        alone = await admin.brokers.ha_status()

    for found, master, slave in ((before, old, new), (after, new, old)):
        of_master, of_slave = found["broker-a"], found["broker-a:1"]
        assert (of_master.master, of_slave.master) == (True, False)
        assert [each.addr for each in of_master.slaves] == [slave.address]
        assert of_slave.client is not None
        assert of_slave.client.master_addr == master.address
    assert alone["broker-a"].slaves == ()


async def test_name_servers_store_settings_that_they_have(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    await admin.topics.set_order(TOPIC, {"broker-a": 1})
    before = (await admin.topics.route(TOPIC)).order_conf
    await admin.name_servers.update_config({"orderMessageEnable": "true"})
    after = (await admin.topics.route(TOPIC)).order_conf

    assert (before, after) == (None, "broker-a:1")
    with pytest.raises(ConfigError, match="not a setting of"):
        await admin.name_servers.update_config({"orderMessage": "true"})


async def test_expired_logs_are_deleted(admin: AdminClient) -> None:
    await admin.brokers.delete_expired_logs()


async def test_entries_of_a_consume_queue_are_those_of_its_messages(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        for tag in (None, "paid", "sent"):
            await producer.send(Message(TOPIC, b"1", tags=tag))

    found = await admin.brokers.consume_queue(QUEUE, 1, 5, group="nobody")
    async with RawClient(cluster.broker.address) as client:
        header = GetConsumeQueue(topic=TOPIC, queue_id=0, index=0, count=-1)
        none = await client.ask(header)

    stored = cluster.broker.messages(TOPIC)
    assert [(each.physic_offset, each.physic_size, each.tags_code) for each in found.entries] == [
        (stored[1].log_offset, len(stored[1].record), java_hash("paid")),
        (stored[2].log_offset, len(stored[2].record), java_hash("sent")),
    ]
    assert json.loads(none.body)["queueData"] == []
    assert (found.min_queue_index, found.max_queue_index) == (0, 3)
    assert found.filter_data == f"nobody@{TOPIC} is not online!"
    with pytest.raises(ConfigError, match=re.escape("index=3: Index 3 of 0@orders is not exist!")):
        await admin.brokers.consume_queue(QUEUE, 3)
    with pytest.raises(BrokerError, match="9@orders is not exist!"):
        await admin.brokers.consume_queue(MessageQueue(TOPIC, "broker-a", 9), 0)


# --- access control -------------------------------------------------------------------------------


@pytest.fixture
async def guarded() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(topics={TOPIC: 1}, accounts=[ADMIN, APP]) as cluster:
        yield cluster


def client_of(cluster: EmbeddedCluster, account: Account) -> AdminClient:
    config = ClientConfig(namesrv=cluster.namesrv, credentials=account.credentials)
    return AdminClient(client=config)


async def test_an_entry_counts_for_its_source_addresses_only(guarded: EmbeddedCluster) -> None:
    async with client_of(guarded, ADMIN) as admin, client_of(guarded, APP) as app:
        grant = (SUBJECT, [f"Topic:{TOPIC}"], ["Get"])
        await admin.acl.create_policy(*grant, source_ips=["10.0.0.0/8", "192.168.0.1"])
        shown = await admin.acl.policies(SUBJECT)
        with pytest.raises(PermissionDeniedError, match="no matched policies"):
            await app.topics.stats(TOPIC)
        await admin.acl.update_policy(*grant, source_ips=["127.0.0.0/8"])

        assert (await app.topics.stats(TOPIC)).queues
    (entry,) = shown["broker-a"].policies[0].entries
    assert entry.source_ips == ("10.0.0.0/8", "192.168.0.1")


async def test_policies_are_listed_by_a_part_of_the_resource(guarded: EmbeddedCluster) -> None:
    async with client_of(guarded, ADMIN) as admin:
        await admin.acl.create_policy(SUBJECT, ["Topic:orders", "Group:billing"], ["Sub"])
        found = await admin.acl.list_policies(resource_part="bill")
        none = await admin.acl.list_policies(resource_part="nothing")

    entries = [e.resource for each in found["broker-a"] for p in each.policies for e in p.entries]
    assert entries == ["Group:billing"]
    assert none == {"broker-a": ()}


@pytest.mark.parametrize(
    ("resource", "actions", "source_ips", "remark"),
    [
        ("Queue:orders", ["Pub"], [], "The resource is null."),
        ("Topic:orders", ["Publish"], [], "The actions is empty."),
        ("Topic:orders", ["Pub", "Any"], [], "The actions can not be Any."),
        ("Topic:orders", ["Pub"], ["localhost"], "The source ip is invalid."),
    ],
)
async def test_invalid_policies_are_rejected(
    guarded: EmbeddedCluster, resource: str, actions: list[str], source_ips: list[str], remark: str
) -> None:
    async with client_of(guarded, ADMIN) as admin:
        with pytest.raises(PermissionDeniedError, match=remark):
            await admin.acl.create_policy(SUBJECT, [resource], actions, source_ips=source_ips)

        assert await admin.acl.policies(SUBJECT) == {}


async def test_a_subject_is_a_user(guarded: EmbeddedCluster) -> None:
    async with client_of(guarded, ADMIN) as admin:
        for subject in ("application", "User:", "Group:application"):
            for call in (
                admin.acl.create_policy(subject, ["Topic:orders"], ["Pub"]),
                admin.acl.update_policy(subject, ["Topic:orders"], ["Pub"]),
                admin.acl.delete_policy(subject),
                admin.acl.policies(subject),
            ):
                with pytest.raises(ConfigError, match=f"subject='{subject}': expected User:NAME"):
                    await call


async def test_the_index_of_a_queue_needs_the_permission_to_get_its_topic(
    guarded: EmbeddedCluster,
) -> None:
    async with client_of(guarded, APP) as app:
        with pytest.raises(PermissionDeniedError, match="Topic:orders"):
            await app.brokers.consume_queue(QUEUE, 0)


async def test_accounts_of_4_9_are_created_and_deleted() -> None:
    async with (
        EmbeddedCluster(version="4.9.7", accounts=[ADMIN, OTHER]) as cluster,
        client_of(cluster, ADMIN) as admin,
        client_of(cluster, OTHER) as other,
    ):
        with pytest.raises(PermissionDeniedError):
            await other.acl.delete_account(ADMIN.access_key)
        with pytest.raises(BrokerError, match="length should longer than 6"):
            await admin.acl.put_account("app", "secret")
        await admin.acl.put_account(APP.access_key, APP.secret_key)
        known = APP.access_key in cluster.broker.acl.accounts
        await admin.acl.delete_account(APP.access_key)
        left = APP.access_key in cluster.broker.acl.accounts
        with pytest.raises(BrokerError, match="has been deleted failed"):
            await admin.acl.delete_account(APP.access_key)

    assert (known, left) == (True, False)
