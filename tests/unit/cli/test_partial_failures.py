"""Commands that succeed on some servers, or for some names, only."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest
from msgspec.structs import replace

from rocketmq_aio import (
    AdminClient,
    AdminError,
    ClientConfig,
    ConfigError,
    Credentials,
    LitePullConsumer,
    Message,
    MessageTrace,
    NotSupportedError,
    Producer,
    TopicConfig,
)
from rocketmq_aio.admin.metadata import Metadata
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.cli import top
from rocketmq_aio.cli.app import run
from rocketmq_aio.cli.confirm import INTERRUPTED
from rocketmq_aio.cli.group_lag import AT_ONCE
from rocketmq_aio.cli.top import TopArguments
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.testing import Account
from tests.unit.cli.test_rmq import Rmq, Started, cluster, rmq

__all__ = ["cluster", "rmq"]
SOON = ("--timeout", "2")  # also for requests that are answered
TO_EVERY_QUEUE = "".join(f"{number}\n" for number in range(40))
READ_ALL = ("consume", "orders", "--from", "beginning", "--exit-at-end")


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        yield admin


@pytest.mark.parametrize(
    "command",
    [
        "topic create new",
        "topic update orders --perm R",
        "group create new",
        "group update billing --max-retries 3",
        "broker update-config deleteWhen=05",
        "static-topic create new 2",
        "static-topic remap orders",
        "offset clone billing billing",
    ],
)
def test_a_change_that_fails_before_it_begins_says_that_nothing_was_changed(
    rmq: Rmq, cluster: EmbeddedCluster, command: str
) -> None:
    cluster.create_group("billing")
    cluster.brokers[1].freeze()
    options = () if "create" in command else ("--yes",)

    said = rmq(*command.split(), *options, *SOON, code=3, stderr=True)

    assert "broker-b" in said
    assert said.endswith("nothing was changed\n")
    assert "done on" not in said


def test_deleting_a_group_is_repeated_if_only_its_topics_are_left(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.create_group("billing")
    cluster.create_topic("%DLQ%billing", 1)
    delete = ("group", "delete", "billing", "--yes")
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    cluster.faults.refuse(code, 1, "no space", topic="%DLQ%billing", broker="broker-b")

    rmq(*delete, "--delete-topics", code=1)
    said = rmq(*delete, code=2, stderr=True)
    rmq(*delete, "--delete-topics")

    assert "there is no such group" in said
    assert "billing" not in rmq("topic", "list", "--internal")


@pytest.mark.parametrize("command", ["topic delete orders", "group delete billing"])
def test_a_preview_that_fails_says_that_nothing_was_changed(
    rmq: Rmq, cluster: EmbeddedCluster, command: str
) -> None:
    cluster.create_group("billing")
    cluster.brokers[1].freeze()

    said = rmq(*command.split(), "--dry-run", *SOON, code=3, stderr=True)

    assert said.endswith("nothing was changed\n")
    assert "would" not in said


def test_metadata_of_some_brokers_are_not_written(
    rmq: Rmq, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.brokers[1].freeze()
    file = tmp_path / "cluster.json"

    said = rmq("metadata", "export", "--file", str(file), *SOON, code=3, stderr=True)

    assert "broker-b: " in said
    assert said.endswith("nothing was changed\n")
    assert not file.exists()


def test_a_restore_ends_with_3_if_nothing_was_restored(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    saved = json.loads(rmq("metadata", "export"))
    topics = [each | {"topic": "copy"} for each in saved["topics"]]
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_TOPIC):
        cluster.faults.refuse(code, 1, "no space", times=None)

    refused = rmq("metadata", "restore", "--yes", given=json.dumps({"topics": topics}), code=3)
    cluster.create_group("billing")
    groups = json.loads(rmq("metadata", "export"))["groups"]
    given = json.dumps({"topics": topics, "groups": groups})
    said = rmq("metadata", "restore", "--yes", given=given, code=1, stderr=True)

    assert refused == ""
    assert "failed on 2 of 4 parts: topics on broker-a: " in said
    assert said.endswith("; done on groups on broker-a, groups on broker-b\n")


def test_a_created_topic_without_a_route_is_not_unknown(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.admin.topics.ROUTE_SECONDS", 0.2)
    cluster.faults.refuse("route", ResponseCode.TOPIC_NOT_EXIST, topic="new", times=None)

    said = rmq("topic", "create", "new", code=3, stderr=True)

    assert "it was created" in said
    assert "there is no such topic" not in said


@pytest.mark.parametrize("verb", ["by-key", "by-id"])
def test_a_search_shows_what_the_other_brokers_found(
    rmq: Rmq, cluster: EmbeddedCluster, verb: str
) -> None:
    rmq("produce", "orders", "--key", "42", given="x")
    (row,) = json.loads(rmq("message", "by-key", "orders", "42", "-o", "json"))
    names = ["broker-a", "broker-b"]
    dead = names.index(row["queue"]["broker_name"]) ^ 1
    cluster.brokers[dead].freeze()
    sought = "42" if verb == "by-key" else row["message_id"]

    found = json.loads(rmq("message", verb, "orders", sought, *SOON, "-o", "json", code=1))

    assert found == [row]
    assert names[dead] in rmq("message", verb, "orders", sought, *SOON, code=1, stderr=True)


def bodies(messages: object) -> list[bytes]:
    assert isinstance(messages, list)
    return [each.body for each in messages]


async def test_a_search_of_the_other_brokers_returns_what_a_whole_one_does_of_them(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        queue = MessageQueue("orders", "broker-a", 0)
        early = await producer.send(Message("orders", b"early", keys=["42"]), queue=queue)
        (stored,) = await admin.messages.by_id("orders", early.message_id)
        cluster.clock.advance(0.5)
        await producer.send(Message("orders", b"late", keys=["42", "42"]), queue=queue)
    begin = stored.store_time + timedelta(milliseconds=1)
    whole = await admin.messages.by_key("orders", "42", begin=begin)
    cluster.faults.refuse(RequestCode.QUERY_MESSAGE, 1, "too busy", broker="broker-b")

    with pytest.raises(AdminError) as raised:
        await admin.messages.by_key("orders", "42", begin=begin)

    assert bodies(whole) == [b"late"]
    assert {name: bodies(some) for name, some in raised.value.done.items()} == {
        "broker-a": [b"late"]
    }


@pytest.mark.parametrize(
    "command",
    [
        "topic stats orders",
        "topic config orders",
        "topic groups orders",
        "group list",
        "group config billing",
        "group connections billing",
        "group producers shop",
        "group progress billing",
        "lag",
        "lag billing",
        "lag billing --topic orders",
        "dlq list",
        "broker stats",
        "top --count 1",
    ],
)
def test_what_the_other_brokers_return_is_shown(
    rmq: Rmq, cluster: EmbeddedCluster, command: str
) -> None:
    cluster.create_group("billing")
    cluster.create_topic("%DLQ%billing", 1)
    for broker in cluster.brokers:
        broker.state.committed["billing", "orders", 0] = 0
    cluster.brokers[1].freeze()
    is_top = command.startswith("top ")

    shown = rmq(*command.split(), *SOON, *(() if is_top else ("-o", "json")), code=1)
    said = shown if is_top else rmq(*command.split(), *SOON, code=1, stderr=True)

    of_broker = ("topic stats orders", "topic config orders", "broker stats")
    text = {**dict.fromkeys(of_broker, "broker-a"), "group producers shop": "[]"}
    assert text.get(command, "billing") in shown
    assert "failed on 1 of 2 servers: broker-b: " in said
    assert "no such" not in said


@pytest.mark.parametrize("command", ["lag {}", "dlq list", "top --count 1"])
def test_a_broker_that_does_not_respond_is_asked_once_by_each_of_the_first_readers(
    rmq: Rmq, cluster: EmbeddedCluster, command: str
) -> None:
    names = [f"billing-{number}" for number in range(AT_ONCE + 4)]
    for name in names:
        cluster.create_group(name)
        cluster.create_topic(f"%DLQ%{name}", 1)
        for broker in cluster.brokers:
            broker.state.committed[name, "orders", 0] = 0
    reads = [
        *(RequestCode.GET_CONSUME_STATS, RequestCode.GET_TOPIC_STATS_INFO),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    ]
    unanswered = cluster.faults.drop(reads, broker="broker-b", times=None)

    shown = rmq(*command.format(" ".join(names)).split(), *SOON, code=1)

    assert 1 <= unanswered.count <= AT_ONCE
    assert names[-1] in shown


def test_progress_has_the_brokers_with_commits_although_another_one_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedCluster(3, topics={"orders": 1}) as three:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", three.namesrv)
        three.create_group("billing")
        three.brokers[0].state.committed["billing", "orders", 0] = 0
        stats = RequestCode.GET_CONSUME_STATS
        three.faults.refuse(stats, 1, "too busy", topic="orders", broker="broker-b", times=None)
        code = run(["lag", "billing", "--queues", "-o", "json"])
        ended = capfd.readouterr()

    assert code == 1, ended
    assert [row["broker"] for row in json.loads(ended.out)] == ["broker-a", "broker-c"]
    assert "failed on 1 of 3 servers: broker-b: " in ended.err


@pytest.mark.parametrize(
    "command", ["topic stats orders", "group list", "group progress billing orders"]
)
def test_only_chosen_brokers_are_read(rmq: Rmq, cluster: EmbeddedCluster, command: str) -> None:
    cluster.create_group("billing")
    cluster.brokers[1].freeze()

    rmq(*command.split(), "--brokers", "broker-a", *SOON)
    said = rmq(*command.split(), "--brokers", "broker-x", *SOON, code=2, stderr=True)

    of_topic = "topic orders is on" if "orders" in command else "the name server knows"
    assert f"{of_topic} ['broker-a', 'broker-b']" in said


async def test_a_trace_shows_what_the_other_brokers_stored() -> None:
    async with EmbeddedCluster(2, topics={"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        trace = MessageTrace()
        async with Producer("shop", namesrv=cluster.namesrv, hooks=[trace]) as producer:
            sent = await producer.send(Message("orders", b"x"))
        config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=2.0)
        async with AdminClient(client=config) as admin:
            (event,) = await admin.messages.trace(sent.message_id)
            stored = await admin.messages.by_key("RMQ_SYS_TRACE_TOPIC", sent.message_id)
            other = next(b for b in cluster.brokers if b.name != stored[0].queue.broker_name)
            other.freeze()
            with pytest.raises(AdminError) as raised:
                await admin.messages.trace(sent.message_id)

    assert list(raised.value.failed) == [other.name]
    assert [each for some in raised.value.done.values() for each in some] == [event]  # type: ignore[attr-defined]


def test_a_clone_names_the_topics_that_were_copied_and_those_that_were_not(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("aaa", 1)
    cluster.create_group("billing")
    cluster.create_group("target")
    for topic in ("aaa", "orders"):
        cluster.brokers[0].state.committed["billing", topic, 0] = 0
    reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    cluster.faults.refuse(reset, 1, "no space", topic="aaa", times=None)

    said = rmq("offset", "clone", "billing", "target", "--yes", code=1, stderr=True)

    assert "failed on 1 of 2 topics: aaa: " in said
    assert said.endswith("; done on orders\n")


def test_offsets_behind_the_end_are_shown_and_not_cloned(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    for group in ("billing", "copy"):
        cluster.create_group(group)
    cluster.brokers[0].state.committed["billing", "orders", 0] = 5

    (row,) = json.loads(rmq("lag", "billing", "-o", "json"))
    none = json.loads(rmq("lag", "billing", "--above", "-1", "-o", "json"))
    said = rmq("offset", "clone", "billing", "copy", "--yes", code=2, stderr=True)

    assert row["lag"] == -5
    assert none == []
    assert said.startswith("rmq: SOURCE 'billing': it committed offset 5 of orders/broker-a/0,")


async def test_a_copy_of_users_names_those_that_were_copied_and_those_that_were_not() -> None:
    accounts = [Account(access_key="admin", secret_key="12345678", admin=True)]
    async with EmbeddedCluster(2, accounts=accounts) as cluster:
        config = ClientConfig(
            namesrv=cluster.namesrv,
            credentials=Credentials(access_key="admin", secret_key="12345678"),
        )
        async with AdminClient(client=config) as admin:
            for name in ("alice", "bob"):
                await admin.acl.create_user(name, "12345678", brokers=["broker-a"])
            cluster.faults.refuse(RequestCode.AUTH_CREATE_USER, 1, "no space", broker="broker-b")
            with pytest.raises(AdminError) as raised:
                await admin.acl.copy_users("broker-a", ["broker-b"], ["alice", "bob"])
            users = (await admin.acl.list_users(brokers=["broker-b"]))["broker-b"]

    assert list(raised.value.failed) == ["alice to broker-b"]
    assert list(raised.value.done) == ["bob to broker-b"]
    assert {each.username for each in users} == {"admin", "bob"}


async def test_the_members_that_answer_are_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedCluster(1, topics={"orders": 2}) as cluster:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", cluster.namesrv)
        async with (
            LitePullConsumer("billing", namesrv=cluster.namesrv) as one,
            LitePullConsumer("billing", namesrv=cluster.namesrv) as two,
        ):
            await one.subscribe("orders")
            await two.subscribe("orders")
            info = RequestCode.GET_CONSUMER_RUNNING_INFO
            cluster.faults.refuse(info, 1, "too busy")
            status = await asyncio.to_thread(run, ["group", "status", "billing", "-o", "json"])
            shown = capfd.readouterr()
            cluster.faults.refuse(info, 1, "too busy")
            progress = await asyncio.to_thread(run, ["group", "progress", "billing", "--owners"])
            silent = capfd.readouterr()

    assert (status, progress) == (1, 1)
    assert len(json.loads(shown.out)) == 1
    assert "too busy" in shown.err
    assert "too busy" in silent.err


async def test_the_members_that_the_other_brokers_list_are_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedCluster(2, topics={"orders": 2}) as cluster:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", cluster.namesrv)
        async with LitePullConsumer("billing", namesrv=cluster.namesrv) as member:
            await member.subscribe("orders")
            listing = RequestCode.GET_CONSUMER_CONNECTION_LIST
            cluster.faults.refuse(listing, 1, "too busy", broker="broker-b")
            code = await asyncio.to_thread(run, ["group", "status", "billing", "-o", "json"])
            ended = capfd.readouterr()

    assert code == 1, ended
    (row,) = json.loads(ended.out)
    assert row["client_id"] == member.client.client_id
    assert row["subscriptions"]["orders"] == "*"
    assert "broker-b: " in ended.err
    assert "too busy" in ended.err


@pytest.mark.parametrize("fail", ["freeze", "kill"])
@pytest.mark.parametrize(
    ("command", "column"),
    [
        ("broker config --replicas --match brokerId", "server"),
        ("broker stats --replicas", "broker_name"),
        ("broker ha-status", "server"),
    ],
)
def test_replicas_are_shown_without_a_master_that_fails_or_is_gone(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fail: str,
    command: str,
    column: str,
) -> None:
    with EmbeddedCluster(2, replicas=1) as replicated:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", replicated.namesrv)
        getattr(replicated.brokers[1], fail)()
        code = run([*command.split(), "-o", "json", *SOON])
        ended = capfd.readouterr()

    assert code == 1, ended
    shown = [each[column] for each in json.loads(ended.out)]
    assert shown == ["broker-a", "broker-a:1", "broker-b:1"]
    assert "failed on 1 of 4 servers: broker-b: " in ended.err


def test_an_error_of_all_servers_says_so(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    cluster.faults.refuse(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 1, "no space", times=None
    )

    said = rmq("group", "create", "new", code=3, stderr=True)

    assert said.endswith("no space (likewise on 1 other server)\n")


def test_top_counts_the_groups_that_are_not_readable(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    cluster.create_group("billing")
    cluster.create_group("shipping")
    consumed = RequestCode.GET_CONSUME_STATS
    cluster.faults.refuse(consumed, 1, "too busy", group="billing", times=None)

    out = rmq("top", "--count", "1", code=1)

    assert "; not wholly readable: 0 topics, 1 groups" in out
    assert rmq("top", "--count", "1", code=1, stderr=True) == ""


def test_an_interrupted_change_says_that_it_may_be_done_in_part(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.brokers[1].freeze()
    with Started("topic", "delete", "orders", "--yes", "--timeout", "30") as process:
        while "orders" in cluster.brokers[0].topics:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]

    assert process.returncode == 130
    assert said == f"{INTERRUPTED}\nrmq: stopped\n".encode()


@pytest.mark.parametrize("command", [("lag", "--watch"), ("top", "--interval")])
def test_watching_goes_on_when_servers_fail_for_a_while(
    rmq: Rmq, cluster: EmbeddedCluster, command: tuple[str, ...]
) -> None:
    cluster.create_group("billing")
    cluster.brokers[0].state.committed["billing", "orders", 0] = 0
    with Started(*command, "0.2", "--timeout", "1") as process:
        wait_for_line(process.stdout, b"billing")
        cluster.faults.refuse(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 1, "busy", times=2)
        for _ in range(4):
            wait_for_line(process.stdout, b"billing")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)

    assert process.returncode == 0


def wait_for_line(lines: IO[bytes], text: bytes) -> None:
    assert any(text in line for line in lines)


async def test_rates_leave_out_the_queues_of_a_broker_that_is_gone(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    async with Producer("p", namesrv=cluster.namesrv) as producer:
        for _ in range(100):
            await producer.send(Message("orders", b"x"))
    _, before, _ = await top._screen(admin, TopArguments(), {})
    cluster.brokers[1].kill()
    text, _, is_whole = await top._screen(admin, TopArguments(), before)

    (row,) = [line.split() for line in text.splitlines() if line.startswith("orders")]
    assert row == ["orders", "50", "0.00"]
    assert is_whole


async def test_a_reset_that_fails_midway_names_the_queues_that_were_reset() -> None:
    async with EmbeddedCluster(1, topics={"orders": 2}) as cluster:
        cluster.brokers[0].create_group("billing")
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            first = cluster.faults.hold(reset)
            resetting = asyncio.ensure_future(admin.offsets.reset("billing", "orders", "earliest"))
            await first.wait()
            cluster.faults.refuse(reset, 1, "no space")
            first.release()
            with pytest.raises(AdminError, match="no space") as raised:
                await resetting

    assert raised.value.of == "queues"
    assert len(raised.value.done) == len(raised.value.failed) == 1


# --- brokers that name servers drop, or list too late ---------------------------------------------


def at_first_offset(monkeypatch: pytest.MonkeyPatch, act: Callable[[PullConsumer], object]) -> None:
    """Call *act* when the first offset of a queue is queried."""
    query, acted = PullConsumer.min_offset, list[bool]()

    async def queried(self: PullConsumer, queue: MessageQueue) -> int:
        if not acted:
            acted.append(True)
            act(self)
        return await query(self, queue)

    monkeypatch.setattr(PullConsumer, "min_offset", queried)


def test_a_broker_that_is_listed_only_at_the_end_is_named(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmq("produce", "orders", given=TO_EVERY_QUEUE)
    late = cluster.brokers[1]
    cluster.name_server.unregister(late)
    at_first_offset(monkeypatch, lambda _: cluster.name_server.register(late))

    said = rmq(*READ_ALL, code=1, stderr=True)

    assert "broker-b" in said
    assert said.endswith("; done on broker-a\n")


def test_a_broker_that_one_of_the_name_servers_lacks_is_named(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmq("produce", "orders", given=TO_EVERY_QUEUE)
    with EmbeddedCluster(0) as other:
        other.name_server.register(cluster.brokers[0])
        at = [other.namesrv, cluster.namesrv]
        monkeypatch.setattr(random, "sample", lambda addresses, _: sorted(addresses, key=at.index))
        said = rmq(*READ_ALL, "-n", ";".join(at), code=1, stderr=True)

    assert "broker-b" in said


@pytest.mark.parametrize("verb", ["show", "export"])
def test_a_group_whose_letters_are_dropped_meanwhile_has_letters(
    verb: str, rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_group("billing")
    cluster.brokers[1].create_topic("%DLQ%billing", 1)

    def drop_route(reader: PullConsumer) -> None:
        cluster.brokers[1].kill()
        reader.client.routes._routes.clear()  # as the second refresh without the topic does

    at_first_offset(monkeypatch, drop_route)

    said = rmq("dlq", verb, "billing", code=3, stderr=True)

    assert "%DLQ%billing" in said
    assert "has no dead letters" not in said


def test_letters_that_one_broker_made_unreadable_are_an_error(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.create_group("billing")
    cluster.brokers[0].create_topic("%DLQ%billing", 1)
    cluster.brokers[1].create_topic("%DLQ%billing", 1, 2)  # as brokers create it

    said = rmq("dlq", "show", "billing", code=2, stderr=True)

    assert "rmq topic update '%DLQ%billing' --perm RW" in said


def test_letters_of_the_other_groups_are_counted(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    for group in ("billing", "shipping"):
        cluster.create_topic(f"%DLQ%{group}", 1)
    counted = RequestCode.GET_TOPIC_STATS_INFO
    cluster.faults.refuse(counted, 1, "too busy", topic="%DLQ%billing", times=None)

    rows = json.loads(rmq("dlq", "list", "-o", "json", code=1))
    said = rmq("dlq", "list", code=1, stderr=True)

    assert [row["group"] for row in rows] == ["shipping"]
    assert said.startswith("rmq: billing: ")


def test_a_letter_without_a_topic_is_found_by_a_dry_run(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    async def send_two_letters() -> None:
        async with (
            Producer("p", namesrv=cluster.namesrv) as producer,
            PullConsumer("billing", namesrv=cluster.namesrv) as consumer,
        ):
            result = await producer.send(Message("orders", b"1"))
            found = (await consumer.pull(result.queue, result.queue_offset)).messages
            await consumer.send_back(found[0], -1)
            await producer.send(Message("%DLQ%billing", b"2"))

    cluster.create_group("billing")
    asyncio.run(send_two_letters())

    dry = rmq("dlq", "resend", "billing", "--dry-run", code=2, stderr=True)
    midway = rmq("dlq", "resend", "billing", "--yes", code=3, stderr=True)

    assert "--to-topic" in dry
    assert "--to-topic" in midway
    assert "1 dead letter of billing sent" in midway


def test_a_broker_that_is_dropped_while_letters_are_counted_is_named(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = TopicAdmin.list

    async def listed(self: TopicAdmin, **given: Any) -> list[str]:  # noqa: ANN401
        cluster.brokers[1].kill()
        return await listing(self, **given)

    monkeypatch.setattr(TopicAdmin, "list", listed)

    said = rmq("dlq", "list", code=1, stderr=True)

    assert "broker-b" in said
    assert said.endswith("; done on broker-a\n")


def test_a_member_names_a_broker_whose_queues_it_lost(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmq("produce", "orders", given=TO_EVERY_QUEUE)
    subscribing = LitePullConsumer.subscribe

    async def subscribed(self: LitePullConsumer, *given: Any) -> None:  # noqa: ANN401
        cluster.brokers[1].kill()
        await subscribing(self, *given)

    monkeypatch.setattr(LitePullConsumer, "subscribe", subscribed)

    said = rmq(*READ_ALL, "--group", "billing", *SOON, code=1, stderr=True)

    assert "broker-b" in said


def test_a_replica_that_lags_behind_does_not_end_a_queue(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    rmq("produce", "orders", given=TO_EVERY_QUEUE)
    end = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    for broker in ("broker-a", "broker-b"):
        nothing = Response(ResponseCode.PULL_NOT_FOUND, end)
        cluster.faults.handle(RequestCode.PULL_MESSAGE, nothing, broker=broker)

    assert len(rmq(*READ_ALL, "--bodies").split()) == 40


# --- administration in several steps --------------------------------------------------------------


async def test_groups_are_restored_although_topics_failed(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    cluster.create_group("billing")
    saved = await admin.metadata.export()
    await admin.groups.delete("billing")
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.GET_ALL_TOPIC_CONFIG):
        cluster.faults.refuse(code, 1, "no space", broker="broker-b", times=None)
    topics = tuple(replace(each, read_queues=4) for each in saved.topics)
    with pytest.raises(AdminError) as raised:
        await admin.metadata.restore(replace(saved, topics=topics))

    assert await admin.groups.list() == ["billing"]
    assert list(raised.value.failed) == ["topics on broker-b"]
    assert list(raised.value.done) == [
        "topics on broker-a",
        "groups on broker-a",
        "groups on broker-b",
    ]


async def test_a_restore_with_an_invalid_name_changes_nothing(
    cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    cluster.create_group("billing")
    saved = await admin.metadata.export()
    topics = (replace(saved.topics[0], topic="new"),)
    groups = (replace(saved.groups[0], group="not valid"),)
    with pytest.raises(ConfigError, match="not valid"):
        await admin.metadata.restore(replace(saved, topics=topics, groups=groups))

    assert await admin.topics.list() == ["orders"]


@pytest.mark.parametrize(
    ("setting", "value"), [("perm", "rw"), ("read_queues", -4), ("write_queues", 65537)]
)
async def test_a_restore_with_a_setting_that_makes_a_topic_unusable_changes_nothing(
    admin: AdminClient, setting: str, value: object
) -> None:
    saved = await admin.metadata.export()
    topic = saved.topics[0]
    topics = (replace(topic, topic="new"), replace(topic, **{setting: value}))
    with pytest.raises(ConfigError, match=f"{value}.*in topic orders"):
        await admin.metadata.restore(replace(saved, topics=topics))

    assert await admin.metadata.export() == saved


@pytest.mark.parametrize(
    ("brokers", "fault"),
    [
        ({"broker-x": "broker-b"}, r"'broker-x'.*has \['broker-a', 'broker-b'\]"),
        ({"broker-a": "broker-b"}, "'broker-b'.*topic orders has two settings there"),
    ],
)
async def test_a_restore_to_brokers_that_do_not_fit_changes_nothing(
    admin: AdminClient, brokers: dict[str, str], fault: str
) -> None:
    await admin.topics.update("orders", queues=3, brokers=["broker-b"])
    saved = await admin.metadata.export()
    with pytest.raises(ConfigError, match=fault):
        await admin.metadata.restore(saved, brokers=brokers)

    assert await admin.metadata.export() == saved


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topics": {"attributes": {"message.type": "FIFO"}}}, "attributes of topics need"),
        ({"groups": {"orderly": True}}, "orderly: groups have this from 5.0 on"),
    ],
)
async def test_a_comparison_names_what_the_brokers_are_too_old_for(
    change: dict[str, dict[str, Any]], reason: str
) -> None:
    async with EmbeddedCluster(version="4.9.7", topics={"orders": 1}) as old:
        old.create_group("billing")
        async with AdminClient(namesrv=old.namesrv) as admin:
            saved = await admin.metadata.export()
            assert await admin.metadata.difference(saved) == Metadata(topics=(), groups=())
            ((kind, settings),) = change.items()
            newer = replace(saved, **{kind: (replace(getattr(saved, kind)[0], **settings),)})
            for call in (admin.metadata.difference, admin.metadata.restore):
                with pytest.raises((NotSupportedError, AdminError), match=reason):
                    await call(newer)


async def test_a_static_topic_is_restored_as_a_static_topic(
    rmq: Rmq, cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    made = await admin.static_topics.create("fixed", 3)
    saved = await admin.metadata.export()
    ordinary = TopicConfig(topic="fixed", broker_name="broker-a", read_queues=2, write_queues=2)
    with pytest.raises(ConfigError, match="broker-a has it as a static topic"):
        await admin.metadata.difference(replace(saved, topics=(ordinary,)))
    await admin.metadata.restore(saved)
    kept = await admin.static_topics.queues("fixed")

    async with EmbeddedCluster(1) as other, AdminClient(namesrv=other.namesrv) as elsewhere:
        wanted = replace(saved, topics=(), groups=())
        wanted_on_one = replace(wanted, topics=saved.topics[:1])
        missing = await elsewhere.metadata.difference(wanted)
        await elsewhere.metadata.restore(wanted)
        queues = await elsewhere.static_topics.queues("fixed")
        left = await elsewhere.metadata.difference(wanted)
        await elsewhere.topics.delete("fixed")
        await elsewhere.topics.create("fixed")
        with pytest.raises(AdminError, match="ordinary") as raised:
            await elsewhere.metadata.restore(wanted_on_one)

    assert saved.static == {"fixed": 3}
    assert {each.topic for each in saved.topics} == {"orders"}
    assert kept == made
    assert missing == wanted
    assert len(queues) == 3
    assert left == Metadata(topics=(), groups=())
    assert list(raised.value.failed) == ["static topic fixed"]


async def test_a_topic_without_permissions_is_restored(admin: AdminClient) -> None:
    saved = await admin.metadata.export()
    closed = replace(saved, topics=tuple(replace(each, perm="") for each in saved.topics))
    await admin.metadata.restore(closed)

    assert await admin.metadata.export() == closed


async def test_the_order_configuration_is_restored_on_new_brokers() -> None:
    async with EmbeddedCluster(2) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create("orders", queues=2, order=True, brokers=["broker-a"])
        await admin.topics.create("other", queues=2)
        await admin.topics.set_order("elsewhere", {"broker-a": 1})
        exported = await admin.metadata.export()
        saved = Metadata.from_dict(json.loads(json.dumps(exported.to_dict())))
        await admin.topics.delete("orders")
        await admin.topics.set_order("orders", {"broker-c": 7})
        await admin.metadata.restore(
            replace(saved, topics=saved.topics[:1]), brokers={"broker-a": "broker-b"}
        )
        order = await admin.topics.order("orders")

    assert saved.order == {"orders": {"broker-a": 2}}
    assert order == {"broker-b": 2, "broker-c": 7}


async def test_an_order_configuration_that_is_not_restored_is_named() -> None:
    async with EmbeddedCluster(1) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create("orders", queues=2, order=True)
        saved = await admin.metadata.export()
        cluster.faults.refuse(RequestCode.PUT_KV_CONFIG, 1, "no space", times=None)
        with pytest.raises(AdminError, match="no space") as raised:
            await admin.metadata.restore(saved)
        wrong = replace(saved, order={"orders": {"broker-a": 0}})
        with pytest.raises(ConfigError, match="order of orders=0"):
            await admin.metadata.restore(wrong)

    assert list(raised.value.failed) == ["order of topics"]
    assert list(raised.value.done) == ["topics on broker-a"]


@pytest.mark.parametrize("code", [RequestCode.GET_KV_CONFIG, RequestCode.PUT_KV_CONFIG])
def test_brokers_that_were_changed_are_named_if_the_order_was_not_stored(
    rmq: Rmq, cluster: EmbeddedCluster, code: RequestCode
) -> None:
    cluster.faults.refuse(code, 1, "no space", times=None)

    said = rmq("topic", "update", "orders", "--order", "--yes", code=1, stderr=True)

    assert "no space" in said
    assert said.endswith("; done on broker-a, broker-b\n")
