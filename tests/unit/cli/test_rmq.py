"""Commands of ``rmq`` on the embedded cluster."""

from __future__ import annotations

import asyncio
import csv
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from rocketmq_aio.admin.servers import Servers
from rocketmq_aio.cli import nouns
from rocketmq_aio.cli.app import MODULES, load, run
from rocketmq_aio.cli.arguments import Argument
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Account
from tests.unit.remoting.until import until

Rmq = Callable[..., str]
DESTROYING = {
    "topic update", "topic delete", "group update", "group delete", "group set-mode",
    "offset reset", "offset skip", "offset clone", "message consume-directly",
    "broker update-config", "broker delete-expired-logs", "broker clean-unused-topics",
    "broker clean-expired-queues", "broker remove", "broker reset-master-flush-offset",
    "namesrv wipe-write-permission", "namesrv update-config", "namesrv delete-value",
    "controller clean", "controller elect-master", "controller update-config",
    "acl delete-user", "acl delete-policy", "acl update-policy", "acl delete-account",
    "acl copy-users", "user delete", "user update", "lite dispatch",
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedCluster]:
    monkeypatch.setenv("RMQ_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with EmbeddedCluster(2, topics={"orders": 2}) as cluster:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", cluster.namesrv)
        yield cluster


@pytest.fixture
def rmq(cluster: EmbeddedCluster, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Rmq:
    """Run a command and return what it prints; *code* is the expected exit code.

    The last argument is a file with the text *given*.
    """

    def call(*arguments: str, code: int = 0, stderr: bool = False, given: str | None = None) -> str:
        if given is not None:
            file = tmp_path / "given"
            file.write_text(given, encoding="utf-8")
            arguments = (*arguments, str(file))
        capfd.readouterr()
        ended = run(arguments)
        captured = capfd.readouterr()
        assert ended == code, captured
        return captured.err if stderr else captured.out

    return call


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_format_has_the_same_rows(rmq: Rmq) -> None:
    rmq("topic", "create", "odd", "--queues", "3", "--attributes", "message.type=FIFO")
    as_json = json.loads(rmq("topic", "config", "odd", "-o", "json"))

    as_yaml = yaml.safe_load(rmq("topic", "config", "odd", "-o", "yaml"))
    rows = list(csv.DictReader(io.StringIO(rmq("topic", "config", "odd", "-o", "csv"))))
    table = rmq("topic", "config", "odd").splitlines()

    assert as_yaml == as_json
    assert [row["broker_name"] for row in rows] == ["broker-a", "broker-b"]
    assert json.loads(rows[0]["attributes"]) == as_json[0]["attributes"] != {}
    assert table[0].split()[:3] == ["TOPIC", "BROKER_NAME", "READ_QUEUES"]
    assert [line.split()[:3] for line in table[1:]] == [
        ["odd", "broker-a", "3"],
        ["odd", "broker-b", "3"],
    ]


def test_csv_has_the_rows_of_all_lists(rmq: Rmq) -> None:
    allocated = rmq("topic", "allocate", "orders", "c1", "c2", "-o", "csv").splitlines()
    route = rmq("topic", "route", "orders", "-o", "csv").splitlines()

    assert allocated[0] == "name,topic,broker_name,queue_id"
    assert [row.partition(",")[0] for row in allocated[1:]] == ["c1", "c1", "c2", "c2"]
    assert [row.partition(",")[0] for row in route[1:]] == ["queues"] * 2 + ["brokers"] * 2


def test_nested_texts_are_matched(rmq: Rmq) -> None:
    rmq("produce", "orders", "--key", "42", given="x\n" * 8)

    shown = json.loads(
        rmq("message", "by-key", "orders", "42", "--match", "broker-b", "-o", "json")
    )

    assert {each["queue"]["broker_name"] for each in shown} == {"broker-b"}


def test_a_change_needs_a_confirmation(rmq: Rmq) -> None:
    dry = rmq("topic", "delete", "orders", "--dry-run", stderr=True)
    refused = rmq("topic", "delete", "orders", code=2, stderr=True)
    assert "orders" in rmq("topic", "list")
    rmq("topic", "delete", "orders", "--yes")

    assert dry == "dry run: would delete topic orders with its messages\n"
    assert refused.startswith("rmq: --yes: is needed, because nobody can be asked")
    assert "orders" not in rmq("topic", "list")


@pytest.mark.parametrize(
    ("command", "action"),
    [
        (
            "topic update orders --perm R --brokers broker-b",
            "change topic orders: brokers broker-b; perm R",
        ),
        (
            "broker update-config deleteWhen=05 flushDiskType=SYNC_FLUSH",
            "update config: settings deleteWhen=05, flushDiskType=SYNC_FLUSH",
        ),
        (
            "topic delete orders --cluster DefaultCluster",
            "delete topic orders with its messages: cluster DefaultCluster",
        ),
        ("broker remove a:1 c b 2", "remove: container a:1; cluster c; broker b; broker id 2"),
        (
            "namesrv wipe-write-permission broker-a",
            "take the write permission from broker broker-a",
        ),
    ],
)
def test_a_confirmation_has_every_option_of_the_change(rmq: Rmq, command: str, action: str) -> None:
    said = rmq(*command.split(), "--dry-run", stderr=True)

    assert said == f"dry run: would {action}\n"


@pytest.mark.parametrize("way", ["--dry-run", "--yes"])
def test_a_dry_run_ends_with_the_error_of_the_call(rmq: Rmq, way: str) -> None:
    rmq("static-topic", "create", "fixed", "2")
    rmq("group", "create", "billing", "--brokers", "broker-a")

    static = rmq("topic", "update", "fixed", "--queues", "8", way, code=2, stderr=True)
    change = ("group", "update", "billing", "--no-enabled", "--brokers", "broker-b")
    absent = rmq(*change, way, code=3, stderr=True)
    broker = rmq("namesrv", "wipe-write-permission", "NOPE", way, code=2, stderr=True)
    user = rmq("user", "delete", "app", way, code=3, stderr=True)

    assert broker == "rmq: BROKER 'NOPE': the name server knows ['broker-a', 'broker-b']\n"
    assert "broker.conf may lack the authenticationMetadataProvider" in user
    assert "fixed is a static topic" in static
    assert "group billing is not on ['broker-b']" in absent


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_dry_run_of_a_reset_commits_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, version: str
) -> None:
    with EmbeddedCluster(topics={"orders": 1}, version=version) as cluster:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", cluster.namesrv)
        assert run(["group", "create", "billing"]) == 0
        (tmp_path / "file").write_text("one")
        assert run(["produce", "orders", str(tmp_path / "file")]) == 0
        capfd.readouterr()

        assert run(["offset", "reset", "billing", "orders", "latest", "--dry-run"]) == 0
        assert run(["group", "progress", "billing", "orders", "-o", "json"]) == 0

        assert json.loads(capfd.readouterr().out)["lag"] == 1


def test_a_confirmation_says_that_the_password_is_changed_and_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RMQ_NEW_SECRET", "12345678")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "app")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "87654321")
    account = Account(access_key="app", secret_key="87654321", admin=True)
    with EmbeddedCluster(accounts=[account]) as cluster:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", cluster.namesrv)

        assert run(["user", "update", "app", "--no-enabled", "--dry-run"]) == 0

    said = capfd.readouterr().err
    assert said == "dry run: would change user app: password ***; enabled False\n"


def test_messages_survive_consume_and_produce(rmq: Rmq) -> None:
    rows = [
        {"body": "ä\n", "tag": "new", "key": "1", "properties": {"price": "7"}},
        {"body_base64": "/wA=", "keys": ["2", "3"], "sharding_key": "s"},
        {"body": {"id": 4}, "priority": 2},
    ]
    rmq("produce", "orders", "--json", given="".join(json.dumps(row) + "\n" for row in rows))
    read = rmq("consume", "orders", "--from", "beginning", "--exit-at-end", "-o", "json")
    rmq("produce", "copy", "--json", given=read)

    copies = lines(rmq("consume", "copy", "--from", "beginning", "--exit-at-end", "-o", "json"))

    by_body = {each["body"]: each for each in copies}
    assert by_body.keys() == {"ä\n", None, '{"id":4}'}
    assert by_body["ä\n"]["tags"] == "new"
    assert by_body["ä\n"]["keys"] == ["1"]
    assert by_body["ä\n"]["properties"]["price"] == "7"
    assert (by_body[None]["body_base64"], by_body[None]["keys"]) == ("/wA=", ["2", "3"])
    assert by_body[None]["properties"]["__SHARDINGKEY"] == "s"
    assert by_body['{"id":4}']["properties"]["_SYS_MSG_PRIORITY_"] == "2"


def test_consume_filters_counts_and_prints_bodies(rmq: Rmq) -> None:
    rmq("produce", "orders", "--tag", "a", "--count", "2", given="1\n2\n\n3\n")
    rmq("produce", "orders", "--tag", "b", "-v", given="1\n2\n\n3\n")
    begin = ("consume", "orders", "--from", "beginning", "--exit-at-end", "--bodies")

    assert sorted(rmq(*begin, "--filter", "a").split()) == ["1", "2"]
    assert sorted(rmq(*begin, "--sql", "TAGS = 'b'").split()) == ["1", "2", "3"]
    assert len(rmq(*begin, "--count", "4").split()) == 4
    assert rmq("consume", "orders", "--exit-at-end") == ""


def test_a_member_commits_and_lag_shows_it(rmq: Rmq) -> None:
    rmq("produce", "orders", given="1\n2\n3\n")
    begin = ("consume", "orders", "--from", "beginning", "--group", "billing", "--bodies")

    first = rmq(*begin, "--count", "2").split()
    lag = json.loads(rmq("lag", "billing", "-o", "json"))
    rest = rmq(*begin, "--exit-at-end").split()

    assert len(first) == 2
    assert [(row["topic"], row["lag"]) for row in lag if row["topic"] == "orders"] == [
        ("orders", 1)
    ]
    assert sorted(first + rest) == ["1", "2", "3"]
    assert json.loads(rmq("lag", "--above", "0", "-o", "json")) == []


def test_a_member_goes_on_when_another_one_gets_its_queue(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("1\n2\n")
    rmq("topic", "create", "single", "--queues", "1", "--brokers", "broker-a")
    rmq("produce", "single", str(tmp_path / "in"))
    first = ClientConfig(namesrv=cluster.namesrv, instance_name="!")  # in the order of client ids
    others: list[LitePullConsumer] = []
    polling = LitePullConsumer.poll

    async def poll(self: LitePullConsumer, *given: Any) -> Any:  # noqa: ANN401
        if others and (other := others[0]).assignment():
            await other.close()
            await until(lambda: bool(self.assignment()))
        messages = await polling(self, *given)
        if messages and not others:
            config: LitePullConfig = LitePullConfig(start_from="earliest")
            others.append(other := LitePullConsumer("billing", client=first, config=config))
            await other.subscribe("single")
            await other.start()
            await other.ready()
            await until(lambda: not self._engine.table)  # the queue is released, not just dropped
        return messages

    monkeypatch.setattr(LitePullConsumer, "poll", poll)
    begin = ("consume", "single", "--from", "beginning", "--exit-at-end", "--bodies")
    printed = rmq(*begin, "--group", "billing").split()

    assert printed == ["1", "2", "1", "2"]
    assert json.loads(rmq("lag", "billing", "--above", "0", "-o", "json")) == []


def test_dead_letters_are_listed_shown_exported_and_resent(
    rmq: Rmq, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    async def bury() -> None:
        async with (
            Producer("p", namesrv=cluster.namesrv) as producer,
            PullConsumer("billing", namesrv=cluster.namesrv) as consumer,
        ):
            message = Message("orders", b"bad", tags="t", keys="42", properties={"own": "1"})
            result = await producer.send(message)
            found = (await consumer.pull(result.queue, result.queue_offset)).messages
            await consumer.send_back(found[0], -1)

    cluster.create_group("billing")
    asyncio.run(bury())
    file = tmp_path / "letters.jsonl"
    again = ("consume", "orders", "--from", "beginning", "--exit-at-end", "-o", "json")

    listed = json.loads(rmq("dlq", "list", "-o", "json"))
    shown = lines(rmq("dlq", "show", "billing", "--key", "42", "-o", "json"))
    rmq("dlq", "export", "billing", "--file", str(file))
    dry = rmq("dlq", "resend", "billing", "--dry-run", stderr=True)
    assert len(lines(rmq(*again))) == 1
    rmq("dlq", "resend", "billing", "--yes")
    rmq("dlq", "resend", "billing", "--key", "other", "--yes")

    assert [(row["group"], row["letters"]) for row in listed] == [("billing", 1)]
    assert [each["body"] for each in shown] == ["bad"]
    assert lines(file.read_text())[0]["body_base64"] == "YmFk"
    assert dry.splitlines()[-1] == "1 dead letter of billing would be sent"
    found = lines(rmq(*again))  # of any queue first
    original, copy = sorted(found, key=lambda each: "COPIED_ID" in each["properties"])
    assert (copy["body"], copy["tags"], copy["keys"]) == ("bad", "t", ["42"])
    assert copy["properties"]["own"] == "1"
    assert copy["properties"]["COPIED_ID"] == original["message_id"]


def test_dead_letters_are_chosen_by_number_and_id(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    cluster.create_group("billing")
    cluster.create_topic("%DLQ%billing", 1)
    rmq("produce", "%DLQ%billing", given="1\n2\n3\n")
    show = ("dlq", "show", "billing", "-o", "json")

    letters = lines(rmq(*show))
    first = lines(rmq(*show, "--count", "2"))
    one = lines(rmq(*show, "--id", letters[1]["message_id"]))

    assert len(letters) == 3
    assert first == letters[:2]
    assert one == letters[1:2]


def test_nothing_is_asked_or_counted_without_dead_letters(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.create_group("billing")

    unknown = rmq("dlq", "resend", "biling", "--dry-run", code=2, stderr=True)
    nothing = rmq("dlq", "resend", "billing", stderr=True)

    assert unknown.startswith("rmq: GROUP 'biling': there is no such group: did you mean billing?")
    assert nothing == "billing has no dead letters\n"


def test_a_group_without_members_has_no_status(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    cluster.create_group("billing")

    said = rmq("group", "status", "billing", stderr=True)

    assert said == "no member of group billing is connected\n"
    assert rmq("group", "status", "billing") == ""


@pytest.mark.parametrize(("form", "printed"), [("table", "NAME\n"), ("csv", "name\n")])
def test_an_empty_list_of_names_is_its_header(rmq: Rmq, form: str, printed: str) -> None:
    assert rmq("group", "list", "-o", form) == printed
    assert rmq("topic", "groups", "orders", "-o", form) == printed


@pytest.mark.parametrize("form", ["table", "csv"])
def test_an_empty_list_without_known_columns_prints_no_line(rmq: Rmq, form: str) -> None:
    assert rmq("topic", "config", "orders", "--match", "none", "-o", form) == ""


def doctor(rmq: Rmq, *options: str, code: int = 1) -> list[dict[str, Any]]:
    """Return the checks of `rmq doctor`."""
    checks: list[dict[str, Any]] = json.loads(
        rmq("doctor", "--timeout", "0.5", *options, "-o", "json", code=code)
    )
    return checks


def failed(checks: list[dict[str, Any]]) -> list[str]:
    return [each["check"] for each in checks if not each["ok"]]


@pytest.mark.parametrize("separator", [";", ","])
def test_doctor_names_the_servers_that_are_down(
    rmq: Rmq, cluster: EmbeddedCluster, separator: str
) -> None:
    assert failed(doctor(rmq, code=0)) == []
    cluster.brokers[1].freeze()

    bad = failed(doctor(rmq, "-n", f"{cluster.namesrv}{separator}127.0.0.1:1"))

    assert {"name server 127.0.0.1:1", "broker broker-b"} <= set(bad)
    assert f"name server {cluster.namesrv}" not in bad
    assert "broker broker-a" not in bad


def test_doctor_shows_the_namespace_of_an_endpoint(rmq: Rmq) -> None:
    checks = doctor(rmq, "-n", "http://MQ_INST_1_a.invalid:1")

    (settings,) = [each["detail"] for each in checks if each["check"] == "settings"]
    assert settings.endswith("namespace MQ_INST_1_a")


def test_doctor_reports_a_name_server_that_is_down_alone(rmq: Rmq) -> None:
    checks = doctor(rmq, "-n", "127.0.0.1:1")

    assert [each["check"] for each in checks] == [
        *("versions", "optional packages", "settings", "name server 127.0.0.1:1")
    ]
    assert failed(checks) == ["name server 127.0.0.1:1"]


def test_doctor_reports_name_servers_that_fail_after_their_check(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.faults.delay(RequestCode.GET_BROKER_CLUSTER_INFO, 0)  # the first one is answered
    cluster.faults.refuse(RequestCode.GET_BROKER_CLUSTER_INFO, 1, times=None)

    assert failed(doctor(rmq)) == ["cluster"]


def test_doctor_reports_an_impossible_time_of_a_broker(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    table = {"runtime": "[ 0 days, 0 hours, 0 minutes, 1 seconds ]", "bootTimestamp": "9" * 400}
    body = json.dumps({"table": table}).encode()
    cluster.faults.handle(
        RequestCode.GET_BROKER_RUNTIME_INFO, Response(body=body), broker="broker-a", times=None
    )

    assert failed(doctor(rmq)) == ["clock of broker-a"]


def test_doctor_checks_slaves_and_controllers(rmq: Rmq) -> None:
    with EmbeddedCluster(1, replicas=1) as cluster:
        (replica,) = cluster.broker.replicas
        settings = (
            f"enableControllerMode=true\ncontrollerAddr={cluster.broker.address};127.0.0.1:1\n"
        )
        config, metadata = RequestCode.GET_BROKER_CONFIG, RequestCode.CONTROLLER_GET_METADATA_INFO
        cluster.faults.handle(config, Response(body=settings.encode()), times=None)
        elected = {"group": "g", "controllerLeaderAddress": "host:1", "isLeader": "true"}
        cluster.faults.handle(metadata, Response(ext=elected))
        without_leader = {"group": "g", "controllerLeaderAddress": "", "isLeader": "false"}
        some = doctor(rmq, "-n", cluster.namesrv)
        cluster.faults.handle(metadata, Response(ext=without_leader))
        replica.freeze()
        fewer = doctor(rmq, "-n", cluster.namesrv)

    details = {each["check"]: each["detail"] for each in some}
    controller = f"controller {cluster.broker.address}"
    assert failed(some) == ["controller 127.0.0.1:1"]
    assert {"broker broker-a:1", "clock of broker-a:1"} <= details.keys()
    assert "leader host:1" in details[controller]
    assert {*failed(fewer)} == {"broker broker-a:1", "controller 127.0.0.1:1", controller}


def test_bench_and_top_show_figures(rmq: Rmq) -> None:
    measured = json.loads(rmq("bench", "orders", "--count", "50", "--yes", "-o", "json"))
    screen = rmq("top", "--count", "1")

    assert (measured["sent"], measured["received"]) == (50, 50)
    assert re.search(r"^orders +50 ", screen, re.MULTILINE)


def test_top_begins_with_the_busiest_topic_and_the_largest_lag(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("few", 1)
    rmq("produce", "few", given="1\n")
    rmq("produce", "orders", given="1\n2\n3\n")
    for group, topic in (("almost", "few"), ("behind", "orders")):
        cluster.create_group(group)
        rmq("offset", "reset", group, topic, "earliest", "--yes")

    screen = rmq("top", "--count", "1").splitlines()

    assert [line.split()[0] for line in screen if line.startswith(("few", "orders"))] == [
        "orders",
        "few",
    ]
    groups = [line.split()[:3] for line in screen if line.startswith(("almost", "behind"))]
    assert groups == [["behind", "orders", "3"], ["almost", "few", "1"]]


def test_results_of_servers_are_rows_whatever_they_have(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    none = json.loads(rmq("broker", "producers", "-o", "json"))
    producers = {"till": [{"clientId": "c", "language": "JAVA", "version": 513}]}
    code, body = RequestCode.GET_ALL_PRODUCER_INFO, json.dumps({"data": producers}).encode()
    cluster.faults.handle(code, Response(body=body), times=None, broker="broker-a")
    some = json.loads(rmq("broker", "producers", "-o", "json"))
    for name in ("broker-a", "broker-b"):  # at first with results of the other one
        cluster.faults.handle(
            RequestCode.GET_BROKER_CONSUME_STATS, Response(body=b"{}"), times=None, broker=name
        )
        assert json.loads(rmq("broker", "consume-stats", "-o", "json")) == []

    assert none == []
    assert [(each["server"], each["name"], each["client_id"]) for each in some] == [
        ("broker-a", "till", "c")
    ]


def test_a_required_flag_can_be_given_as_false(rmq: Rmq) -> None:
    for option, value in (("--random", True), ("--no-random", False)):
        said = rmq("broker", "set-read-ahead", option, "--dry-run", stderr=True)
        assert said == f"dry run: would set read ahead: random {value}\n"


def test_each_value_of_an_argument_with_several_is_passed(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    code = RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON
    export = cluster.faults.handle(code, Response(), times=None)

    rmq("broker", "export-rocksdb-config", "topics", "consumerOffsets", "--brokers", "broker-a")

    (asked,) = export.requests
    assert asked.ext_fields()["configType"] == "topics;consumerOffsets"


def test_many_topics_and_groups_are_listed_with_few_requests(
    rmq: Rmq, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5000):
        cluster.create_topic(f"topic-{number:04}", 1)
    for number in range(500):
        cluster.create_group(f"group-{number:03}")
    sent: list[str] = []
    request = Servers.request

    def counted(*given: Any, **more: Any) -> Any:  # noqa: ANN401
        sent.append(type(given[2]).__name__)
        return request(*given, **more)

    monkeypatch.setattr(Servers, "request", counted)

    topics = rmq(
        "topic", "list", "--match", "topic-*", "--skip", "4990", "--limit", "5", "-o", "csv"
    )
    note = rmq("topic", "list", "--limit", "5", stderr=True)
    groups = json.loads(rmq("group", "list", "-o", "json"))

    assert topics.split() == ["name", *(f"topic-{n}" for n in range(4990, 4995))]
    assert note == "5 of 5001 rows, after the first 0\n"
    assert len(groups) == 500
    assert len(sent) <= 10
    rmq("lag", "--match", "group-*")
    assert len(sent) <= 10 + 2 * 500 + 2  # one request per group and broker
    rmq("top", "--count", "1", "--most", "20")
    assert len(sent) <= 1100 + 100


# --- conventions ----------------------------------------------------------------------------------


def test_a_dry_run_of_a_restore_compares_the_file_with_the_cluster(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    rmq("topic", "create", "sorted", "--queues", "2", "--order")
    rmq("group", "create", "billing")
    saved = json.loads(rmq("metadata", "export"))
    given = json.dumps(saved)
    dry = ("metadata", "restore", "--dry-run")

    nothing = rmq(*dry, "-o", "json", given=given)
    rmq("group", "update", "billing", "--max-retries", "3", "--yes")
    rmq("topic", "delete", "sorted", "--yes")
    rows = rmq(*dry, "-o", "csv", given=given).split()
    said = rmq(*dry, given=given, stderr=True)
    unknown = rmq(*dry, "--brokers", "broker-b=broker-x", code=2, stderr=True, given=given)
    cluster.brokers[1].freeze()
    silent = rmq(*dry, "--timeout", "0.5", code=3, stderr=True, given=given)

    assert json.loads(nothing) == []
    assert rows == [
        "kind,name,broker",
        *("topic,sorted,broker-a", "topic,sorted,broker-b"),
        *("group,billing,broker-a", "group,billing,broker-b"),
        *("order,sorted,broker-a", "order,sorted,broker-b"),
    ]
    assert said.endswith("would create or change 1 topic and 1 group, and the order of 1 topic\n")
    assert "--brokers 'broker-x': the name server knows" in unknown
    assert silent.endswith("nothing was changed\n")


def test_metadata_moves_topics_and_groups_to_other_brokers(rmq: Rmq, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    rmq("topic", "create", "moved", "--queues", "3", "--brokers", "broker-a")
    rmq("group", "create", "movers", "--max-retries", "5")
    written = rmq("metadata", "export", "--file", str(file), stderr=True)
    again = rmq("metadata", "export", "--file", str(file), code=2, stderr=True)
    exported = json.loads(rmq("metadata", "export"))
    part = {"topics": [each for each in exported["topics"] if each["topic"] == "moved"]}
    rmq("topic", "delete", "moved", "--yes")

    dry = rmq("metadata", "restore", str(file), "--dry-run", stderr=True)
    assert "moved" not in rmq("topic", "list")
    file.write_text(json.dumps(part))
    rmq("metadata", "restore", str(file), "--brokers", "broker-a=broker-b", "--yes")
    (config,) = json.loads(rmq("topic", "config", "moved", "-o", "json"))
    file.write_text("[]")
    refused = rmq("metadata", "restore", str(file), "--yes", code=2, stderr=True)
    file.write_text('{"topic": []}')
    misspelt = rmq("metadata", "restore", str(file), "--yes", code=2, stderr=True)

    assert written == "2 topics and 1 group written\n"
    assert "--file" in again
    assert json.loads(json.dumps(exported))["groups"][0]["max_retries"] == 5
    assert dry == "dry run: would create or change 1 topic and 0 groups\n"
    assert (config["broker_name"], config["read_queues"]) == ("broker-b", 3)
    assert refused.startswith("rmq: FILE")
    assert misspelt.endswith("has topic: expected topics, groups, order and static\n")


def commands() -> dict[str, Any]:
    """Return every command by its full name."""
    found = {}
    for name in MODULES:
        made = load(name)
        context = click.Context(made)
        verbs = made.list_commands(context) if isinstance(made, click.Group) else [""]
        for verb in verbs:
            each = made.get_command(context, verb) if isinstance(made, click.Group) else made
            found[f"{name} {verb}".strip()] = each
    return found


def test_every_command_has_help_and_no_option_for_secrets() -> None:
    names = {name: {o for p in each.params for o in p.opts} for name, each in commands().items()}

    assert len(names) > 100
    assert all(each.help for name, each in commands().items() if name != "dev")
    secrets = {"--password", "--secret-key", "--secret", "--security-token"}
    assert not {name for name, options in names.items() if options & secrets}


def test_a_method_returns_something_or_begins_with_a_word_of_changes() -> None:
    parts = {part: getattr(nouns.ADMIN, part) for part, _ in nouns.NOUNS.values()}
    names = [(each, name) for each in parts.values() for name in nouns.methods(each)]

    reads = {name for part, name in names if getattr(part, name).__doc__.startswith("Return ")}
    words = {name: {name, name.split("_")[0]} for _, name in names}
    assert reads == {name for name in words if not words[name] & (nouns.SAFE | nouns.CHANGING)}
    assert set().union(*words.values()) >= nouns.SAFE | nouns.CHANGING


def test_a_setting_that_is_not_given_is_not_changed() -> None:
    enabled = {
        name: param
        for name, command in commands().items()
        for param in command.params
        if param.name == "p_enabled"
    }

    assert "user update" in enabled
    for name, param in enabled.items():
        assert (param.default, param.secondary_opts) == (None, ["--no-enabled"]), name


def test_every_option_and_argument_has_a_help_text() -> None:
    without = {
        f"{name} {each.name}"
        for name, command in commands().items()
        for each in command.params
        if not (each.text if isinstance(each, Argument) else each.help)
    }

    assert not without


def test_a_semicolon_in_an_example_does_not_end_the_command() -> None:
    examples = "\n".join(each.epilog or "" for each in commands().values())

    assert ";" in examples
    assert ";" not in re.sub(r"'[^'\n]*'", "", examples)


def test_destructive_commands_ask_and_have_a_dry_run() -> None:
    asking = {
        name
        for name, each in commands().items()
        if {"--yes", "--dry-run"} <= {o for p in each.params for o in p.opts}
    }

    assert asking >= DESTROYING
    reading = {name for name in asking if re.search(r" (list|config|stats|progress|by-key)$", name)}
    assert not reading


def test_every_public_method_of_the_parts_is_a_verb() -> None:
    known = commands().keys()
    missing = {
        f"{noun} {name}"
        for noun, (part, verbs) in nouns.NOUNS.items()
        for name, _ in inspect.getmembers(getattr(nouns.ADMIN, part), inspect.iscoroutinefunction)
        if not verbs and not name.startswith("_") and name not in nouns.INTERNAL
        if name not in nouns.NOT_TEXT
        if f"{noun} {name.replace('_', '-')}" not in known
    }

    assert not missing


def test_help_imports_no_client() -> None:
    code = (
        "import sys; from rocketmq_aio.cli.app import run; run(['--help']); "
        "print([n for n in sys.modules if n.startswith(('rocketmq_aio.admin', 'rocketmq_aio.spark',"
        " 'rocketmq_aio.embedded', 'rocketmq_aio.consumer.', 'asyncio'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines()[-1] == "[]"


def test_commands_import_only_what_they_need(cluster: EmbeddedCluster) -> None:
    """The start of a command takes longer than its requests."""
    code = (
        "import sys; from rocketmq_aio.cli.app import run; run(['topic', 'list']); "
        "print(' '.join({*sys.modules} | {'.'.join(n.split('.')[:2]) for n in sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(ended.stdout.splitlines()[-1].split())

    slow = {"rich", "pydantic", "typer", "importlib.metadata", "zstandard", "lz4", "structlog"}
    parts = {"producer", "consumer", "spark", "embedded", "testing", "trace", "opentelemetry"}
    assert not imported & (slow | {f"rocketmq_aio.{part}" for part in parts})


def test_only_the_verb_that_is_called_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    register = nouns.register

    def noted(app: click.Group, noun: str, shown: str, method: Callable[..., Any]) -> None:
        made.append(shown)
        register(app, noun, shown, method)

    monkeypatch.setattr(nouns, "register", noted)
    fresh = nouns.NounGroup("topic", nouns.ADMIN.topics, {})
    monkeypatch.setitem(nouns.apps, "topic", fresh)

    assert run(["topic", "list", "--help"]) == 0

    assert made == ["list"]


# --- processes ------------------------------------------------------------------------------------


class Started(subprocess.Popen[bytes]):
    """A command in its own process, with pipes as its standard streams."""

    stdin: IO[bytes]  # pyright: ignore[reportIncompatibleVariableOverride]
    stdout: IO[bytes]  # pyright: ignore[reportIncompatibleVariableOverride]
    stderr: IO[bytes]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, *arguments: str) -> None:
        code = "from rocketmq_aio.cli import main; main()"
        pipe = subprocess.PIPE
        super().__init__(
            [sys.executable, "-c", code, *arguments], stdin=pipe, stdout=pipe, stderr=pipe
        )


@pytest.mark.parametrize(
    ("options", "code", "error"), [((), 0, b""), (("--count", "5"), 130, b"rmq: stopped\n")]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume(
    rmq: Rmq, number: int, options: tuple[str, ...], code: int, error: bytes
) -> None:
    rmq("produce", "orders", given="one\n")
    with Started("consume", "orders", "--from", "beginning", "--bodies", *options) as process:
        assert process.stdout.readline() == b"one\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (code, b"", error)


BASH = """
PATH="{folder}:$PATH"
eval "$(rmq completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_rmq_completion rmq
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def complete_in_bash(words: str) -> subprocess.CompletedProcess[str]:
    """Complete the last of *words* with the ``rmq`` that is installed beside the interpreter."""
    folder = Path(sys.executable).parent
    code = BASH.format(folder=folder, words=words, last=len(words.split()) - 1)
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rmq top", ["top", "topic"]),
        ("rmq topic stats ord", ["orders"]),
        ("rmq lag bil", ["billing"]),
        ("rmq topic update orders --brokers broker-", ["broker-a", "broker-b"]),
        ("rmq consume orders --exit", ["--exit-at-end"]),
    ],
)
def test_bash_completes_commands_options_and_names(
    cluster: EmbeddedCluster, words: str, expected: list[str]
) -> None:
    cluster.create_group("billing")

    ended = complete_in_bash(words)
    for _ in range(4):  # names that take longer than a second are not suggested
        if not ended.stdout:
            ended = complete_in_bash(words)

    assert sorted(ended.stdout.split()) == expected, ended.stderr


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        ("zsh", {"COMP_WORDS": "rmq topic stats ord", "COMP_CWORD": "3"}),
        ("fish", {"COMP_WORDS": "rmq topic stats ord", "COMP_CWORD": "ord"}),
    ],
)
def test_zsh_and_fish_get_topics(
    cluster: EmbeddedCluster, shell: str, more: dict[str, str]
) -> None:
    command = [sys.executable, "-c", "from rocketmq_aio.cli import main; main()"]
    own = {"_RMQ_COMPLETE": f"{shell}_complete"}

    ended = subprocess.run(
        command, env={**os.environ, **own, **more}, capture_output=True, text=True, check=False
    )

    assert "orders" in ended.stdout
    assert ended.stderr == ""


def test_completion_of_an_unreachable_cluster_is_empty_and_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    ended = complete_in_bash("rmq topic stats -n 127.0.0.1:1 o")

    assert (ended.stdout.strip(), ended.stderr) == ("", "")
