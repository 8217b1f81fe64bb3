"""AdminClient with access control: allowed accounts, and the error of each other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pytest

from rocketmq_aio import (
    AdminClient,
    AuthError,
    BrokerError,
    ClientConfig,
    ConfigError,
    Credentials,
    Message,
    MessageQueue,
    NotSupportedError,
    PermissionDeniedError,
    Producer,
)
from rocketmq_aio.testing import Account, Cluster
from rocketmq_aio.testing.security import Security
from tests.broker.official_tool import OfficialTool
from tests.unit.remoting.until import until_done

TOPIC: Final = "guarded-orders"
ADMIN: Final = Account(access_key="administrator", secret_key="admin-canary", admin=True)
SHOP: Final = Account(
    access_key="shop-account", secret_key="canary-5d1e88a0", topics={TOPIC: "PUB|SUB"}, groups={}
)
SECONDS: Final = 30.0


@pytest.fixture(scope="module")
def acl_cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Two brokers with access control."""
    return fresh_cluster(accounts=[ADMIN, SHOP], brokers=2)


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
        assert len(await admin.reset_offsets("guarded-group", TOPIC, "latest")) == 4


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
            admin.brokers.config(),
            admin.brokers.clean_expired_queues(),
            admin.acl.delete_user("shop-account"),
            admin.acl.delete_account("shop-account"),
        ):
            with pytest.raises(AuthError) as caught:
                await refused
            assert "wrong-secret" not in str(caught.value)


async def test_an_account_without_admin_rights_is_denied(acl_cluster: Cluster) -> None:
    async with AdminClient(client=config(acl_cluster, SHOP.credentials)) as admin:
        for refused in (admin.create_topic("never-made"), admin.delete_group("guarded-group")):
            with pytest.raises(PermissionDeniedError):
                await refused


# --- users, policies, accounts ---------------------------------------------------------------


@pytest.fixture(scope="module")
def tool(acl_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfficialTool]:
    """mqadmin with the account of the administrator."""
    security = Security(accounts=(ADMIN, SHOP))
    folder = tmp_path_factory.mktemp("mqadmin-acl")
    with closing(OfficialTool(acl_cluster.version, acl_cluster.namesrv, folder, security)) as tool:
        yield tool


@pytest.mark.mqadmin("createUser updateUser deleteUser getUser listUser copyUser")
@pytest.mark.mqadmin("createAcl updateAcl deleteAcl getAcl listAcl copyAcl")
async def test_users_and_policies_are_managed_and_take_effect(
    acl_cluster: Cluster, tool: OfficialTool
) -> None:
    allowed = config(acl_cluster, ADMIN.credentials)
    alice = Credentials(access_key="alice", secret_key="wonderland-1")
    async with AdminClient(client=allowed) as admin:
        acl = admin.acl
        if acl_cluster.version.startswith("4."):
            with pytest.raises(NotSupportedError, match=r"5\.3\.0"):
                await acl.create_user("alice", "wonderland-1")
            return
        broker, other = (each.name for each in acl_cluster.brokers)
        address, target = (each.address for each in acl_cluster.brokers)
        only = [broker]
        await admin.topics.create("alices-topic", queues=1)
        await acl.create_user("alice", "wonderland-1", brokers=only)
        with pytest.raises(BrokerError):
            await acl.create_user("alice", "wonderland-1", brokers=only)
        await acl.create_policy("User:alice", ["Topic:alices-*"], ["Pub"], brokers=only)
        users, policies = await tool(f"listUser -b {address}", f"getAcl -b {address} -s User:alice")

        await stored(MessageQueue("alices-topic", broker, 0), config(acl_cluster, alice))
        assert "alice" in {each.username for each in (await acl.list_users())[broker]}
        assert [each.username for each in (await acl.list_users("lic"))[broker]] == ["alice"]
        user = (await acl.user("alice"))[broker]
        assert (user.user_type, user.user_status) == ("Normal", "enable")
        assert "wonderland" not in repr(user)
        assert "alice" in users
        assert "Topic:alices-*" in policies
        ((entry,),) = [each.entries for each in (await acl.policies("User:alice"))[broker].policies]
        assert (entry.resource, entry.actions, entry.decision) == (
            *("Topic:alices-*", ("Pub",), "Allow"),
        )
        assert [each.subject for each in (await acl.list_policies("alice"))[broker]] == [
            "User:alice"
        ]

        # Copied by this package, deleted, and copied by mqadmin.
        at_other = MessageQueue("alices-topic", other, 0)
        assert await acl.copy_users(broker, [other], ["alice"]) == ["alice"]
        assert await acl.copy_policies(broker, [other], ["User:alice"]) == ["User:alice"]
        with pytest.raises(ConfigError, match="nobody"):
            await acl.copy_users(broker, [other], ["nobody"])
        await stored(at_other, config(acl_cluster, alice))
        ours = (await acl.user("alice"))[other], (await acl.policies("User:alice"))[other]
        await acl.delete_policy("User:alice", brokers=[other])
        await acl.delete_user("alice", brokers=[other])
        assert list(await acl.user("alice")) == [broker]
        between = f"-f {address} -t {target}"
        await tool(f"copyUser {between} -u alice", f"copyAcl {between} -s User:alice")
        theirs = (await acl.user("alice"))[other], (await acl.policies("User:alice"))[other]
        assert theirs == ours

        await acl.update_policy("User:alice", ["Topic:alices-*"], ["Pub"], decision="Deny")
        await refused(at_other, config(acl_cluster, alice))
        await acl.delete_policy("User:alice")
        assert (await acl.list_policies("alice"))[broker] == ()
        await acl.update_user("alice", enabled=False)
        assert (await acl.user("alice"))[broker].user_status == "disable"
        await acl.delete_user("alice")
        assert await acl.user("alice") == {}
        assert await acl.policies("User:alice") == {}


async def test_the_entry_of_a_topic_wins_over_that_of_a_prefix(acl_cluster: Cluster) -> None:
    carol = Credentials(access_key="carol-account", secret_key="canary-of-carol")
    if acl_cluster.version.startswith("4."):
        return  # it has no policies
    async with AdminClient(client=config(acl_cluster, ADMIN.credentials)) as admin:
        acl, subject = admin.acl, "User:carol-account"
        broker = acl_cluster.brokers[0].name
        for topic in ("carols", "carols-2", "dodos"):
            await admin.topics.create(topic, queues=1)
        await acl.create_user(carol.access_key, carol.secret_key)
        await acl.create_policy(subject, ["Topic:carols"], ["Pub"])
        await acl.update_policy(subject, ["Topic:carols*"], ["Pub"], decision="Deny")
        await acl.update_policy(subject, ["topic:dodos"], ["pub"])
        with pytest.raises(BrokerError, match="The resource is null"):
            await acl.update_policy(subject, ["Topic:more", "more"], ["Pub"])

        await stored(MessageQueue("carols", broker, 0), config(acl_cluster, carol))
        await stored(MessageQueue("dodos", broker, 0), config(acl_cluster, carol))
        await refused(MessageQueue("carols-2", broker, 0), config(acl_cluster, carol))
        assert await resources(admin, subject, broker) == {
            *("Topic:carols", "Topic:carols*", "Topic:dodos")
        }
        await acl.delete_policy(subject, "topic:carols")
        assert await resources(admin, subject, broker) == {"Topic:carols*", "Topic:dodos"}
        await acl.update_policy(subject, ["Any:everything"], ["All"])
        assert "*" in await resources(admin, subject, broker)


async def resources(admin: AdminClient, subject: str, broker: str) -> set[str]:
    found = (await admin.acl.policies(subject))[broker].policies
    return {entry.resource for policy in found for entry in policy.entries}


async def test_an_account_of_4_9_is_replaced_with_its_permissions(acl_cluster: Cluster) -> None:
    if not acl_cluster.version.startswith("4."):
        return
    dora = Credentials(access_key="doras-account", secret_key="canary-of-dora")
    names, client = (dora.access_key, dora.secret_key), config(acl_cluster, dora)
    async with AdminClient(client=config(acl_cluster, ADMIN.credentials)) as admin:
        acl, broker = admin.acl, acl_cluster.brokers[0].name
        for topic in ("doras", "others"):
            await admin.topics.create(topic, queues=1)
        mine, other = MessageQueue("doras", broker, 0), MessageQueue("others", broker, 0)

        await acl.put_account(*names, topics={"doras": "PUB"})
        await stored(mine, client)
        await acl.put_account(*names, topics={"others": "PUB"})
        await refused(mine, client)
        await stored(other, client)
        await acl.put_account(*names, default_topic_permission="PUB|SUB", topics={"others": "DENY"})
        await refused(other, client)
        await stored(mine, client)
        for wrong in ("READ", "pub"):
            with pytest.raises(BrokerError, match=f"permission error for doras={wrong}"):
                await acl.put_account(*names, topics={"doras": wrong})


@pytest.mark.needs_real_broker("the embedded broker has no versions of accounts, no open addresses")
@pytest.mark.mqadmin("updateAclConfig deleteAclConfig updateGlobalWhiteAddr")
@pytest.mark.mqadmin("clusterAclConfigVersion")
async def test_accounts_of_4_9_are_managed_and_take_effect(
    acl_cluster: Cluster, tool: OfficialTool
) -> None:
    bob = Credentials(access_key="bobs-account", secret_key="builder-canary")
    async with AdminClient(client=config(acl_cluster, ADMIN.credentials)) as admin:
        acl = admin.acl
        if not acl_cluster.version.startswith("4."):
            with pytest.raises(NotSupportedError):
                await acl.account_versions()
            return
        await admin.topics.create("bobs-topic", queues=1)
        broker = acl_cluster.brokers[0].name
        queue = MessageQueue("bobs-topic", broker, 0)
        before = (await acl.account_versions())[broker]
        await acl.put_account(bob.access_key, bob.secret_key, topics={"bobs-topic": "PUB"})
        after = (await acl.account_versions())[broker]
        (printed,) = await tool("clusterAclConfigVersion -c DefaultCluster")

        await stored(queue, config(acl_cluster, bob))
        assert after.all_acl_file_version != before.all_acl_file_version
        assert after.broker_name in printed
        await acl.put_account(bob.access_key, bob.secret_key, topics={"bobs-topic": "DENY"})
        await refused(queue, config(acl_cluster, bob))
        await acl.delete_account(bob.access_key)
        await acl.put_open_addresses(["127.0.0.1"])
        await stored(queue, config(acl_cluster, bob))  # no account is needed any more
        await acl.put_open_addresses(["10.9.9.9"])
        with pytest.raises(BrokerError):
            await acl.put_account("short", "short")


async def test_the_error_of_a_broker_without_access_control_2_0_names_its_settings(
    admin: AdminClient, rocketmq_version: str
) -> None:
    if rocketmq_version.startswith("4."):
        return
    for call in (
        admin.acl.list_users(),
        admin.acl.create_user("app", "12345678"),
        admin.acl.policies("User:app"),
        admin.acl.list_policies(),
    ):
        with pytest.raises(BrokerError, match="authenticationMetadataProvider or author"):
            await call


@pytest.mark.needs_real_broker("an embedded broker without accounts does not have aclEnable")
async def test_accounts_need_access_control_1_0(admin: AdminClient) -> None:
    """4.9.7 brokers do not respond, or respond with an exception of Java."""
    with pytest.raises(NotSupportedError, match="set aclEnable=true"):
        await admin.acl.account_versions()
    with pytest.raises(NotSupportedError, match="set aclEnable=true"):
        await admin.acl.put_account("some-account", "some-secret")
    with pytest.raises(NotSupportedError, match="set aclEnable=true"):
        await admin.acl.delete_account("some-account")
    with pytest.raises(NotSupportedError, match="set aclEnable=true"):
        await admin.acl.put_open_addresses(["10.0.0.1"])


async def stored(queue: MessageQueue, client: ClientConfig) -> None:
    """Send until the broker allows it: changed accounts are cached for a moment."""
    await until_done(lambda: is_allowed(queue, client), "permission", SECONDS)


async def refused(queue: MessageQueue, client: ClientConfig) -> None:
    async def is_refused() -> bool:
        return not await is_allowed(queue, client)

    await until_done(is_refused, "the refusal", SECONDS)


async def is_allowed(queue: MessageQueue, client: ClientConfig) -> bool:
    try:
        async with Producer("till", client=client) as producer:
            await producer.send(Message(queue.topic, b"one"), queue=queue)
    except (AuthError, PermissionDeniedError):
        return False
    return True
