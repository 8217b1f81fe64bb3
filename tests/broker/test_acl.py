"""Access control on real brokers: 1.0 on 4.9.7, 2.0 on 5.5.0; the name server checks nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import pytest

from rocketmq_aio import (
    AuthError,
    BrokerError,
    ClientConfig,
    CommitError,
    Credentials,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    OffsetCorrected,
    PermissionDeniedError,
    PopConfig,
    PopConsumer,
    Producer,
    PullConsumer,
    PullFailed,
    PushConfig,
    PushConsumer,
    RetryLater,
    RocketMQError,
)
from rocketmq_aio.testing import Account, Cluster
from tests.broker.reading_groups import in_thread
from tests.unit.remoting.until import until

TOPIC: Final = "guarded-orders"
FORBIDDEN: Final = "guarded-salaries"  # it exists, and the account has no rights on it
GROUPS: Final = {f"guarded-{number}": "SUB" for number in range(20)}
SECONDS: Final = 40.0
SEND: Final = 310

SECRET: Final = "canary-5d1e88a0"
TOKEN: Final = "canary-token-77b1"
ADMIN: Final = Account(access_key="administrator", secret_key="admin-canary", admin=True)
SHOP: Final = Account(
    access_key="shop-account", secret_key=SECRET, topics={TOPIC: "PUB|SUB"}, groups=GROUPS
)

# With ACL 2.0 it may not query the maximum offset.
READER: Final = Account(
    access_key="reader-account", secret_key=SECRET, topics={TOPIC: "SUB"}, groups=GROUPS
)

WRONG: Final = Credentials(access_key="shop-account", secret_key="wrong-secret")
NOBODY: Final = [
    (WRONG, "(?i)check signature"),
    (Credentials(access_key="who-is-this", secret_key=SECRET), "who-is-this"),
    (None, "(?i)no accesskey is configured|username cannot be null"),
]
WHO: Final = ["wrong key", "unknown account", "no credentials"]


class Requests:
    """Counts requests by code."""

    def __init__(self) -> None:
        self.codes: Counter[int] = Counter()

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        self.codes[code] += 1

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        pass


@pytest.fixture(scope="module")
def acl_cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster with access control."""
    cluster = fresh_cluster(accounts=[ADMIN, SHOP, READER])
    for topic in (TOPIC, FORBIDDEN):
        cluster.create_topic(topic, queues=2)
    for group in GROUPS:
        cluster.create_group(group)
    return cluster


@pytest.fixture(scope="module")
def groups() -> Iterator[str]:
    return iter(GROUPS)


@pytest.fixture
def group(groups: Iterator[str]) -> str:
    """A group of this test alone that the account may use."""
    return next(groups)


@pytest.fixture
def allowed(acl_cluster: Cluster) -> ClientConfig:
    return ClientConfig(namesrv=acl_cluster.namesrv, credentials=SHOP.credentials)


async def send(config: ClientConfig, *bodies: bytes) -> list[MessageQueue]:
    async with Producer("till", client=config) as producer:
        return [(await producer.send(Message(TOPIC, body))).queue for body in bodies]


async def polled(consumer: LitePullConsumer, body: bytes) -> MessageExt:
    """Poll until the message with *body* is received."""
    async with asyncio.timeout(SECONDS):
        while True:
            for message in await consumer.poll(1):
                if message.body == body:
                    return message


EARLIEST: Final = LitePullConfig(start_from="earliest", long_poll_seconds=1.0)


@pytest.mark.parametrize("token", [None, TOKEN], ids=["account", "security token"])
async def test_an_authorised_account_sends_reads_and_commits(
    acl_cluster: Cluster, group: str, token: str
) -> None:
    credentials = Credentials(
        access_key=SHOP.access_key, secret_key=SHOP.secret_key, security_token=token
    )
    config = ClientConfig(namesrv=acl_cluster.namesrv, credentials=credentials)
    body = f"read by {group}".encode()
    async with Producer("till", client=config) as producer:
        await producer.send_batch([Message(TOPIC, b"1"), Message(TOPIC, b"2")])
        result = await producer.send(Message(TOPIC, body, properties={"ключ": "значение"}))
    async with LitePullConsumer(group, client=config, config=EARLIEST) as consumer:
        await consumer.subscribe(TOPIC)
        message = await polled(consumer, body)
        await consumer.commit()

        assert message.properties["ключ"] == "значение"
        assert await consumer.committed(message.queue) is not None
    async with PullConsumer(group, client=config) as puller:
        assert await puller.committed(result.queue) == message.queue_offset + 1
        pulled = await puller.pull(result.queue, result.queue_offset)
        assert pulled.messages[0].body == body


async def test_running_clients_follow_credentials_that_change(
    acl_cluster: Cluster, group: str
) -> None:
    accounts = {"right": SHOP.credentials, "expired": WRONG}
    current = "expired"
    failed = asyncio.Event()

    async def note_failures(consumer: LitePullConsumer) -> None:
        async for event in consumer.events():
            if isinstance(event, PullFailed):
                failed.set()

    config = ClientConfig(namesrv=acl_cluster.namesrv, credentials=lambda: accounts[current])
    async with Producer("till", client=config) as producer, asyncio.TaskGroup() as tasks:
        with pytest.raises(AuthError):
            await producer.send(Message(TOPIC, b"1"))
        current = "right"
        async with LitePullConsumer(group, client=config, config=EARLIEST) as consumer:
            tasks.create_task(note_failures(consumer))
            await consumer.subscribe(TOPIC)
            for number in range(2):
                body = f"{number} for {group}".encode()
                await producer.send(Message(TOPIC, body))
                await polled(consumer, body)
                failed.clear()
                current = "expired"
                await asyncio.wait_for(failed.wait(), SECONDS)
                current = "right"


async def test_members_of_a_group_rebalance_with_acl(allowed: ClientConfig, group: str) -> None:
    async with (
        LitePullConsumer(group, client=allowed) as first,
        LitePullConsumer(group, client=allowed) as second,
    ):
        for consumer in (first, second):
            await consumer.subscribe(TOPIC)

        def shared() -> bool:
            return len(first.assignment()) == len(second.assignment()) == 1

        await until(shared, "the queues are shared out", SECONDS)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_failed_messages_are_retried_and_dead_lettered_with_acl(
    allowed: ClientConfig, group: str, orderly: bool
) -> None:
    tries: Counter[bytes] = Counter()
    good, bad = f"good for {group}".encode(), f"bad for {group}".encode()

    async def handle(message: MessageExt) -> None:
        tries[message.body] += 1
        if message.body == good and tries[good] == 1:
            raise RetryLater(delay_level=1)
        if message.body == bad:
            raise ValueError("bad")

    settings = PushConfig(start_from="earliest", max_reconsume_times=1, suspend_seconds=0.1)
    await send(allowed, good, bad)
    async with PushConsumer(
        group, on_message=handle, client=allowed, config=settings, orderly=orderly
    ) as consumer:
        await consumer.subscribe(TOPIC)
        await until(lambda: tries[good] == tries[bad] == 2, "second tries", SECONDS)
    # Read access to the group's messages does not include its dead letters.
    assert tries[good] == tries[bad] == 2


async def test_messages_are_popped_with_acl(
    acl_cluster: Cluster, allowed: ClientConfig, group: str
) -> None:
    if acl_cluster.version.startswith("4."):
        with pytest.raises(BrokerError):
            await popped(allowed, group)
        return
    await send(allowed, f"popped by {group}".encode())

    await popped(allowed, group)


async def popped(config: ClientConfig, group: str) -> None:
    """Pop a message, extend its invisible time and acknowledge it."""
    settings = PopConfig(start_from="earliest")
    async with PopConsumer(group, client=config, config=settings) as consumer:
        await consumer.subscribe(TOPIC)
        async with asyncio.timeout(SECONDS):
            while not (taken := await consumer.receive()):
                pass
        await consumer.change_invisible(taken[0], 30)
        await consumer.ack(taken)


# --- denied accounts ------------------------------------------------------------------------------


@pytest.mark.parametrize(("credentials", "words"), NOBODY, ids=WHO)
async def test_an_unknown_account_fails_without_retry(
    acl_cluster: Cluster, group: str, credentials: Credentials | None, words: str
) -> None:
    requests = Requests()
    config = ClientConfig(
        namesrv=acl_cluster.namesrv, credentials=credentials, rpc_hooks=(requests,)
    )
    async with Producer("till", client=config) as producer:
        with pytest.raises(AuthError, match=words) as caught:
            await producer.send(Message(TOPIC, b"refused"))
    assert requests.codes[SEND] == 1
    assert caught.value.address == acl_cluster.brokers[0].address

    consumer = LitePullConsumer(group, client=config)
    await consumer.subscribe(TOPIC)
    with pytest.raises(AuthError, match=words):
        await consumer.start()
    async with PullConsumer(group, client=config) as puller:
        [queue, _] = await puller.message_queues(TOPIC)  # name servers check no credentials
        for call in (puller.pull(queue, 0), puller.max_offset(queue)):
            with pytest.raises(AuthError, match=words):
                await call
        with pytest.raises(CommitError) as lost:
            await puller.commit(queue, 1)
        assert isinstance(lost.value.lost[queue], AuthError)


async def test_a_denied_operation_fails_without_retry(acl_cluster: Cluster, group: str) -> None:
    requests = Requests()
    config = ClientConfig(
        namesrv=acl_cluster.namesrv, credentials=SHOP.credentials, rpc_hooks=(requests,)
    )
    async with Producer("till", client=config) as producer:
        with pytest.raises(PermissionDeniedError, match=f"(?i)permission.*{FORBIDDEN}"):
            await producer.send(Message(FORBIDDEN, b"refused"))
        assert requests.codes[SEND] == 1
        assert (await producer.send(Message(TOPIC, b"fine"))).ok

    for name, topic in ((group, FORBIDDEN), ("not-this-group", TOPIC)):
        consumer = LitePullConsumer(name, client=config)
        await consumer.subscribe(topic)
        with pytest.raises(PermissionDeniedError):
            await consumer.start()


async def test_a_denied_offset_query_of_a_new_group_is_reported_until_it_is_allowed(
    acl_cluster: Cluster, group: str
) -> None:
    config = ClientConfig(namesrv=acl_cluster.namesrv, credentials=READER.credentials)
    async with LitePullConsumer(group, client=config) as consumer:  # starts at the latest message
        await consumer.subscribe(TOPIC)
        if not acl_cluster.version.startswith("4."):
            with pytest.raises(PermissionDeniedError) as caught:
                await consumer.ready(SECONDS)
            assert f"Get on Topic:{TOPIC}" in caught.value.__notes__[0]
            with pytest.raises(PermissionDeniedError):
                await consumer.poll(SECONDS)
            account = ["-s", f"User:{READER.access_key}", "-r", f"Topic:{TOPIC}"]
            rights = ["-a", "Sub,Get", "-d", "Allow"]
            await in_thread(
                acl_cluster.mqadmin, "updateAcl", "-c", "DefaultCluster", *account, *rights
            )
        await until_ready(consumer)
        body = f"for {group}".encode()
        await send(ClientConfig(namesrv=acl_cluster.namesrv, credentials=SHOP.credentials), body)
        await polled(consumer, body)


async def test_an_offset_beyond_the_end_is_corrected_to_the_end_by_an_account_that_may_only_pull(
    allowed: ClientConfig, group: str
) -> None:
    async with PullConsumer(group, client=allowed) as puller:
        queues = {*await send(allowed, *([b"before"] * 4)), *await puller.message_queues(TOPIC)}
        for queue in queues:
            await puller.commit(queue, 1_000_000)
    config = LitePullConfig(offset_illegal="latest", long_poll_seconds=1.0)
    async with LitePullConsumer(group, client=allowed, config=config) as consumer:
        events = consumer.events()
        await consumer.subscribe(TOPIC)
        corrected: dict[MessageQueue, int] = {}
        async with asyncio.timeout(SECONDS):
            while corrected.keys() < queues:
                event = await anext(events)
                if isinstance(event, OffsetCorrected):
                    corrected[event.queue] = event.corrected
        body = f"for {group}".encode()
        [queue] = await send(allowed, body)
        [message] = await consumer.poll(SECONDS)

    assert (message.body, message.queue_offset) == (body, corrected[queue])


async def until_ready(consumer: LitePullConsumer) -> None:
    """Wait until no queue is denied."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await consumer.ready()
            except PermissionDeniedError:
                continue
            return


async def test_a_changed_account_emits_an_event_and_recovers(
    acl_cluster: Cluster, allowed: ClientConfig, group: str
) -> None:
    failures: list[PullFailed] = []

    async def listen(consumer: LitePullConsumer) -> None:
        async for event in consumer.events():
            if isinstance(event, PullFailed):
                failures.append(event)  # noqa: PERF401 - seen while it goes on

    async with LitePullConsumer(group, client=allowed, config=EARLIEST) as consumer:
        await consumer.subscribe(TOPIC)
        await send(allowed, f"before {group}".encode())
        await polled(consumer, f"before {group}".encode())
        listening = asyncio.create_task(listen(consumer))

        await in_thread(set_secret, acl_cluster, "another-secret")
        await until(lambda: len(failures) == 2, "both queues are told about", SECONDS)
        with pytest.raises(AuthError):
            await send(allowed, b"refused")
        await in_thread(set_secret, acl_cluster, SECRET)
        await until_sent(allowed, f"after {group}".encode())
        await polled(consumer, f"after {group}".encode())
        listening.cancel()

    assert len({event.queue for event in failures}) == len(failures) == 2
    assert all("signature" in event.reason for event in failures)


def set_secret(cluster: Cluster, secret: str) -> None:
    """Give the account another secret key."""
    if cluster.version.startswith("4."):
        rights = ["-t", f"{TOPIC}=PUB|SUB", "-i", "DENY", "-u", "DENY", "-m", "false"]
        groups = ["-g", ",".join(f"{group}=SUB" for group in GROUPS)]
        account = ["-a", SHOP.access_key, "-s", secret]
        cluster.mqadmin("updateAclConfig", "-c", "DefaultCluster", *account, *rights, *groups)
    else:
        account = ["-u", SHOP.access_key, "-p", secret]
        cluster.mqadmin("updateUser", "-c", "DefaultCluster", *account)


async def until_sent(config: ClientConfig, body: bytes) -> None:
    """Send when the broker accepts the account again."""
    async with Producer("till", client=config) as producer, asyncio.timeout(SECONDS):
        while True:
            try:
                await producer.send(Message(TOPIC, body))
            except AuthError:
                await asyncio.sleep(0.1)
            else:
                return


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("acl_cluster")
async def test_secrets_are_never_logged(
    acl_cluster: Cluster,
    group: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    accounts = [
        Credentials(access_key=SHOP.access_key, secret_key=SECRET, security_token=TOKEN),
        Credentials(access_key=SHOP.access_key, secret_key=SECRET + "-wrong", security_token=TOKEN),
        Credentials(access_key="who-is-this", secret_key=SECRET, security_token=TOKEN),
    ]
    reported: list[Any] = []
    for credentials in accounts:
        config = ClientConfig(namesrv=acl_cluster.namesrv, credentials=credentials)
        reported += [config, *await everything(config, group)]
    errors = [each for each in reported if isinstance(each, BaseException)]

    shown = [repr(each) + str(each) for each in reported]
    shown += ["".join(traceback.format_exception(each)) for each in errors]
    shown += [repr(pickle.dumps(each)) for each in errors]
    shown += [caplog.text, *capfd.readouterr()]
    assert len(errors) >= 6
    assert "shop-account" in shown[0]  # values that are not secret are shown
    assert "route_changed" in caplog.text
    for text in shown:
        assert "canary" not in text
    gc.collect()


async def everything(config: ClientConfig, group: str) -> list[object]:
    """Use *config* in every client; return all objects that can be shown."""
    reported: list[object] = []
    async with Producer("till", client=config) as producer:
        reported += [producer, producer.client, producer.client.remoting]
        for topic in (TOPIC, FORBIDDEN):
            try:
                reported.append(await producer.send(Message(topic, b"shown")))
            except RocketMQError as error:
                reported.append(error)
    consumer = LitePullConsumer(group, client=config, config=EARLIEST)
    reported.append(consumer)
    await consumer.subscribe(TOPIC)
    try:
        async with consumer:
            reported += await consumer.poll(1)
    except RocketMQError as error:
        reported.append(error)
    return reported
