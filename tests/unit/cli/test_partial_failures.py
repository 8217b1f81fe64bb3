"""Commands that succeed on some servers, or for some names, only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rocketmq_aio import (
    AdminClient,
    AdminError,
    ClientConfig,
    Credentials,
    LitePullConsumer,
    Message,
    MessageTrace,
    Producer,
)
from rocketmq_aio.cli.app import run
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Account
from tests.unit.cli.test_rmq import Rmq, cluster, rmq

__all__ = ["cluster", "rmq"]
SOON = ("--timeout", "0.5")


@pytest.mark.parametrize(
    "command",
    [
        "topic create new",
        "topic update orders --perm R",
        "group create new",
        "group update billing",
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


def test_a_created_topic_without_a_route_is_not_unknown(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.admin.topics.ROUTE_SECONDS", 0.2)
    cluster.name_server.freeze_routes()

    said = rmq("topic", "create", "new", code=3, stderr=True)

    assert "it was created" in said
    assert "there is no such topic" not in said


@pytest.mark.parametrize("verb", ["by-key", "by-id"])
def test_a_search_shows_what_the_other_brokers_found(
    rmq: Rmq, cluster: EmbeddedCluster, verb: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("x")
    rmq("produce", "orders", str(tmp_path / "in"), "--key", "42")
    (row,) = json.loads(rmq("message", "by-key", "orders", "42", "-o", "json"))
    names = ["broker-a", "broker-b"]
    dead = names.index(row["queue"]["broker_name"]) ^ 1
    cluster.brokers[dead].freeze()
    sought = "42" if verb == "by-key" else row["message_id"]

    found = json.loads(rmq("message", verb, "orders", sought, *SOON, "-o", "json", code=1))

    assert found == [row]
    assert names[dead] in rmq("message", verb, "orders", sought, *SOON, code=1, stderr=True)


async def test_a_trace_shows_what_the_other_brokers_stored() -> None:
    async with EmbeddedCluster(2, topics={"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        trace = MessageTrace()
        async with Producer("shop", namesrv=cluster.namesrv, hooks=[trace]) as producer:
            sent = await producer.send(Message("orders", b"x"))
        config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=0.5)
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

    assert "; not readable: 0 topics, 1 groups" in out
    assert rmq("top", "--count", "1", code=1, stderr=True) == ""


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
