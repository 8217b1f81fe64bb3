"""Names that the servers do not have, and searches without a result."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.protocol.codes import RequestCode
from tests.unit.cli.test_rmq import Rmq, cluster, rmq

__all__ = ["cluster", "rmq"]
ID = "7F0000010A2B18B4AAC2000000000000"


@pytest.fixture(autouse=True)
def billing(cluster: EmbeddedCluster) -> None:
    cluster.create_group("billing")


@pytest.mark.parametrize(
    "command",
    [
        "topic config orderss",
        "topic route orderss",
        "topic stats orderss",
        "topic groups orderss",
        "topic clusters orderss",
        "topic order orderss",
        "topic allocate orderss a",
        "topic update orderss --perm R --yes",
        "topic delete orderss --yes",
        "topic delete orderss",
        "group progress billing orderss",
        "group set-mode billing orderss pop --yes",
        "offset reset billing orderss earliest --yes",
        "offset skip billing orderss --yes",
        "offset time-spans billing orderss",
        "message by-id orderss X",
        "message by-key orderss X",
        "lag --topic orderss",
        "consume orderss --exit-at-end",
    ],
)
def test_an_unknown_topic_is_an_error_with_similar_names(rmq: Rmq, command: str) -> None:
    said = rmq(*command.split(), code=2, stderr=True)

    assert said == (
        "rmq: TOPIC 'orderss': there is no such topic: did you mean orders? "
        "(rmq topic list --internal shows all)\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        "group config Biling",
        "group connections Biling",
        "group status Biling",
        "group progress Biling",
        "group progress Biling orders",
        "group update Biling --no-enabled --yes",
        "group delete Biling --yes",
        "group set-mode Biling orders pop --yes",
        "offset reset Biling orders earliest --yes",
        "offset skip Biling orders --yes",
        "offset time-spans Biling orders",
        "broker limit-cold-data Biling 100 --yes",
        "dlq show Biling",
        "dlq export Biling",
        "dlq resend Biling --yes",
        "lag Biling",
        "lag Biling --topic orders",
        "offset clone Biling billing --yes",
        "offset clone billing Biling --yes",
    ],
)
def test_an_unknown_group_is_an_error_with_similar_names(rmq: Rmq, command: str) -> None:
    said = rmq(*command.split(), code=2, stderr=True)

    assert said.endswith(
        " 'Biling': there is no such group: did you mean billing? (rmq group list shows all)\n"
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"trace {ID}", f"there are no trace records of message {ID}"),
        (f"message trace {ID}", f"there are no trace records of message {ID}"),
        (f"message by-id orders {ID}", f"no message of topic orders has the id {ID}"),
        ("message by-key orders 42", "no message of topic orders has the key 42"),
        ("message by-tag orders 42", "no message of topic orders has the tag 42"),
        ("group producers shop", "no producer of group shop is connected"),
        ("broker statistics NAME x", "no broker has counted NAME of x"),
        ("namesrv value space name", "no name server has a value name in namespace space"),
        ("namesrv values space", "no name server has values in namespace space"),
    ],
)
def test_a_missing_message_or_trace_exits_with_3(rmq: Rmq, command: str, reason: str) -> None:
    assert rmq(*command.split(), "-o", "json", code=3) == ""
    assert rmq(*command.split(), code=3, stderr=True).startswith(f"rmq: {reason}")


def test_a_group_without_members_or_commits_is_shown(rmq: Rmq) -> None:
    assert "billing" in rmq("group", "config", "billing")
    assert "billing" in rmq("group", "connections", "billing")
    assert "billing" in rmq("group", "progress", "billing")
    rmq("group", "status", "billing")
    rmq("lag", "billing")
    assert rmq("dlq", "show", "billing", stderr=True) == "billing has no dead letters\n"


def test_an_unknown_group_among_others_is_named_and_the_others_are_shown(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.brokers[0].state.committed["billing", "orders", 0] = 0

    assert "billing" in rmq("lag", "billing", "Biling", code=1)
    assert "did you mean billing?" in rmq("lag", "billing", "Biling", code=1, stderr=True)


def test_a_deleted_group_whose_offsets_were_kept_is_known(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.brokers[0].state.committed["billing", "orders", 0] = 0
    rmq("group", "delete", "billing", "--keep-offsets", "--yes")
    assert "orders" in rmq("lag", "billing")

    rmq("group", "delete", "billing", "--yes")

    rmq("lag", "billing", code=2)


def test_offsets_in_memory_need_connected_members(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    remark = "java.lang.NullPointerException, org.apache.rocketmq.broker.client.net.Broker2Client"
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    cluster.faults.refuse(code, 1, remark, times=None)
    command = ("offset", "in-memory")

    unknown = rmq(*command, "biling", "orders", code=2, stderr=True)
    idle = rmq(*command, "billing", "orders", code=3, stderr=True)

    assert "did you mean billing?" in unknown
    assert idle == "rmq: no member of group billing is connected\n"


def test_an_existing_topic_advises_the_command(rmq: Rmq) -> None:
    said = rmq("topic", "create", "orders", "--queues", "9", code=2, stderr=True)
    assert said.endswith("; use rmq topic update\n")
    said = rmq("group", "create", "billing", "--max-retries", "1", code=2, stderr=True)
    assert said.endswith("; use rmq group update\n")


def test_names_in_braces_are_part_of_the_confirmation(rmq: Rmq) -> None:
    said = rmq("topic", "set-order", "orders", "{a}=4", "--dry-run", stderr=True)

    assert said == "dry run: would set order: topic orders; queues {a}=4\n"
