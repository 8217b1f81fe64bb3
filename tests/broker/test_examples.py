"""Examples on a real broker: each does what its docstring says."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Final

import httpx
import pytest

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.testing import Cluster, received_message
from rocketmq_aio.testing.ports import choose_port
from tests.broker.reading import wait_for_messages
from tests.broker.reading_groups import is_before

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.05
JOBS: Final = 100


@contextmanager
def started(example: str, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start *example* with readable output; kill it after the block."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py"), *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the process; return its exit code and the unread output."""
    assert process.stdout is not None
    rest = process.stdout.read()
    return process.wait(SECONDS), rest


def run(example: str, *options: str, **environment: str) -> str:
    """Run *example* successfully; return its output."""
    with started(example, *options, **environment) as process:
        code, output = outcome(process)
    assert code == 0, output
    return output


def lines_until(process: subprocess.Popen[str], wanted: set[str], count: int) -> list[str]:
    """Read lines until *count* of *wanted* were found; return these."""
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < count and (line := process.stdout.readline()):
        found += {line} & wanted
    return found


def answer(
    client: httpx.Client, path: str, enough: Callable[[httpx.Response], bool]
) -> httpx.Response:
    """Request *path* until the response satisfies *enough*."""
    deadline = time.monotonic() + SECONDS
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = response = client.get(path)
        except httpx.TransportError as error:  # it is still starting
            last = error
        else:
            if enough(response):
                return response
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"{path} did not return the expected response, but {last!r}")


async def committed(namesrv: str, group: str, topic: str) -> int:
    """Return how many messages of *topic* the group has committed."""
    async with LitePullConsumer(
        group, namesrv=namesrv, config=LitePullConfig(auto_commit=False)
    ) as consumer:
        queues = await consumer.message_queues(topic)
        return sum([await consumer.committed(queue) or 0 for queue in queues])


def test_quickstart_reads_its_messages_and_resumes_after_them(
    rocketmq_namesrv: str, rocketmq_topic: str
) -> None:
    options = ("--namesrv", rocketmq_namesrv, "--topic", rocketmq_topic)

    outputs = [run("quickstart", *options), run("quickstart", *options)]

    for output in outputs:
        assert len(re.findall(r"^sent hello \d to .+ at offset \d+$", output, re.M)) == 10
        assert sorted(re.findall(r"^received hello (\d)", output, re.M)) == list("0123456789")


def test_stream_receives_only_the_selected_tag(rocketmq_namesrv: str, rocketmq_topic: str) -> None:
    output = run("stream", "--topic", rocketmq_topic, ROCKETMQ_NAMESRV=rocketmq_namesrv)

    paid = sorted(map(int, re.findall(r"^order (\d+) is paid$", output, re.M)))
    assert paid == list(range(1, 20, 2))
    assert output.endswith("10 of 20 orders were paid\n")


def test_manual_commit_retries_failures_and_commits_all_processed_messages(
    rocketmq_namesrv: str, rocketmq_topic: str
) -> None:
    output = run("manual_commit", "--namesrv", rocketmq_namesrv, "--topic", rocketmq_topic)

    assert output.count("the bank is busy, retrying") == 4
    assert "20 booked, 0 queues rewound" in output
    committed_offsets = re.findall(r" is committed up to (\d+)$", output, re.M)
    assert sum(map(int, committed_offsets)) == 20


async def test_pull_copies_each_order_once_over_several_runs(
    rocketmq_cluster: Cluster, rocketmq_namesrv: str, rocketmq_topic: str, tmp_path: Path
) -> None:
    copied = tmp_path / "orders.txt"
    options = ("--namesrv", rocketmq_namesrv, "--topic", rocketmq_topic, "--to", str(copied))
    orders = [f"order {number}" for number in range(JOBS)]

    for so_far in (JOBS // 4, JOBS):
        already = copied.read_text().splitlines() if copied.exists() else []
        async with Producer("orders-producer", namesrv=rocketmq_namesrv) as producer:
            for order in orders[len(already) : so_far]:
                await producer.send(Message(rocketmq_topic, order.encode()))
        await asyncio.to_thread(wait_for_messages, rocketmq_cluster, rocketmq_topic, so_far)
        output = run("pull", *options)

        assert sum(map(int, re.findall(r": (\d+) copied$", output, re.M))) == so_far - len(already)
        assert sorted(copied.read_text().splitlines()) == sorted(orders[:so_far])


def test_push_retries_failures_and_dead_letters_can_be_shown_and_replayed(
    rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str
) -> None:
    where = ("--namesrv", rocketmq_namesrv, "--group", rocketmq_group)

    nothing_yet = run("dead_letters", *where)
    output = run("push", *where, "--topic", rocketmq_topic)
    looked = [run("dead_letters", *where), run("dead_letters", *where, "--replay")]
    nothing_left = run("dead_letters", *where)

    assert output.count("the bank is busy") == 4
    tries = dict(re.findall(r"^order (\d+) is booked, at try (\d+)$", output, re.M))
    assert tries == {str(number): "1" if number % 5 else "2" for number in range(20)}
    assert re.search(r"^dead: offset \d+ of .+: PayloadError", output, re.M)
    assert output.endswith("20 booked, 1 dead\n")
    line = f"0: from {rocketmq_topic}, b'no order at all'\n1 dead letters"
    assert looked == [f"{line}\n", f"{line} sent again\n"]
    assert nothing_yet == nothing_left == "0 dead letters\n"


def test_orderly_processes_the_steps_of_each_order_in_sequence(
    rocketmq_namesrv: str, rocketmq_topic: str
) -> None:
    output = run("orderly", "--namesrv", rocketmq_namesrv, "--topic", rocketmq_topic)

    assert output.count("jam: the bank is busy\n") == 2
    steps = re.findall(r"^jam is (\w+)$", output, re.M)
    assert steps == ["created", "paid", "packed", "shipped"]
    assert output.endswith("6 of 6 orders went through all steps in order\n")


def test_request_reply_returns_every_reply(rocketmq_namesrv: str, rocketmq_topic: str) -> None:
    output = run("request_reply", "--namesrv", rocketmq_namesrv, "--topic", rocketmq_topic)

    assert output == "tea? yes, tea\njam? yes, jam\ncake? yes, cake\n"


async def test_worker_finishes_and_commits_running_jobs_on_sigterm(
    rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str
) -> None:
    jobs = {f"done job {number}\n" for number in range(JOBS)}
    async with Producer("jobs-producer", namesrv=rocketmq_namesrv) as producer:
        for number in range(JOBS):
            await producer.send(Message(rocketmq_topic, f"job {number}".encode()))
    options = ("--topic", rocketmq_topic, "--group", rocketmq_group)

    done: list[str] = []
    for wanted in (JOBS // 4, JOBS):
        with started("worker", *options, ROCKETMQ_NAMESRV=rocketmq_namesrv) as worker:
            here = lines_until(worker, jobs, wanted - len(done))
            worker.send_signal(signal.SIGTERM)
            code, rest = outcome(worker)
        here += [line for line in rest.splitlines(keepends=True) if line in jobs]
        done += here

        assert code == 0, rest
        assert rest.endswith(f"stopped, {len(here)} done and committed\n")
        assert await committed(rocketmq_namesrv, rocketmq_group, rocketmq_topic) == len(done)
    assert sorted(done) == sorted(jobs)


def test_fastapi_app_sends_orders_and_consumes_them(
    rocketmq_namesrv: str, rocketmq_topic: str
) -> None:
    port = choose_port()
    items = [{"item": name} for name in ("cake", "jam", "tea")]
    environment = {"ROCKETMQ_NAMESRV": rocketmq_namesrv, "ORDERS_TOPIC": rocketmq_topic}

    with (
        started("fastapi_app", "--port", str(port), **environment) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        answer(client, "/health", lambda response: response.json() == "ok")
        placed = [client.post("/orders", json=item) for item in items]
        seen = answer(client, "/orders", lambda response: len(response.json()) >= len(items))
        process.send_signal(signal.SIGTERM)
        code, output = outcome(process)

    assert [response.status_code for response in placed] == [202] * len(items)
    assert all(response.json()["message_id"] for response in placed)
    assert sorted(seen.json(), key=itemgetter("item")) == items
    assert "Application shutdown complete" in output
    assert code in (0, -signal.SIGTERM), output
    assert asyncio.run(committed(rocketmq_namesrv, "shop", rocketmq_topic)) == len(items)


@pytest.mark.timeout(300, func_only=True)
def test_demo_starts_a_broker_and_loses_no_message(
    rocketmq_backend: str, rocketmq_version: str
) -> None:
    options = ("--version", rocketmq_version, "--backend", rocketmq_backend)
    output = run("demo", "--seconds", "2", *options)

    assert f"Getting RocketMQ {rocketmq_version} ready" in output
    assert re.search(r"sent +[\d,]+ \( *[\d,]+/s\)   received +[\d,]+ \(", output)
    summary = re.search(r"^sent ([\d,]+), received ([\d,]+), lost 0, ", output, re.M)
    assert summary is not None, output
    assert int(summary[1].replace(",", "")) > 0


def test_demo_reports_a_broker_that_does_not_start(capfd: pytest.CaptureFixture[str]) -> None:
    code = runpy.run_path(str(EXAMPLES / "demo.py"))["main"](1.0, "9.9", "embedded")

    assert code == 1
    assert "9.9" in capfd.readouterr().err


@pytest.mark.parametrize("joint", "_+")
def test_a_dead_letter_that_was_popped_returns_to_its_topic(joint: str) -> None:
    origin_of = runpy.run_path(str(EXAMPLES / "dead_letters.py"))["origin_of"]
    letter = received_message(Message("%DLQ%push", b"x"))
    letter.raw_properties = f"RETRY_TOPIC\x01%RETRY%push{joint}orders\x02".encode()

    assert origin_of(letter, "push") == "orders"


def test_a_dead_letter_of_a_light_message_queue_returns_there_by_a_topic() -> None:
    copy_of = runpy.run_path(str(EXAMPLES / "dead_letters.py"))["copy_of"]
    letter = received_message(Message("%DLQ%push", b"x"))

    copy = copy_of(letter, "%LMQ%alice", [], "chat")
    with pytest.raises(SystemExit, match="--to-topic is needed"):
        copy_of(letter, "%LMQ%alice", [], None)

    assert (copy.topic, copy.properties["INNER_MULTI_DISPATCH"]) == ("chat", "%LMQ%alice")


def test_demo_exits_with_an_error_when_a_message_is_lost() -> None:
    counts = runpy.run_path(str(EXAMPLES / "demo.py"))["Counts"]

    codes = [
        counts(sent=sent, received=received).exit_code()
        for sent, received in (({1, 2}, {1}), ({1, 2}, {1, 2, 3}), (set(), set()))
    ]

    assert codes == [1, 0, 1]


def test_pop_shares_jobs_and_dead_letters_the_failing_one(
    rocketmq_cluster: Cluster, rocketmq_namesrv: str, rocketmq_topic: str
) -> None:
    options = ("--namesrv", rocketmq_namesrv, "--topic", rocketmq_topic)
    if rocketmq_cluster.version.startswith("4."):
        with started("pop", *options) as process:
            code, output = outcome(process)
        assert code != 0
        assert "popping needs a broker of RocketMQ 5.0 or newer" in output
        return

    output = run("pop", *options)

    done = sorted(map(int, re.findall(r"^worker \d: job (\d+) done$", output, re.M)))
    assert done == [number for number in range(20) if number != 13]
    assert len(re.findall(r"^worker \d: job 13 failed, try [12]$", output, re.M)) == 2
    assert "the last one: MessageDeadLettered(" in output


def test_priorities_receives_the_highest_first(
    rocketmq_cluster: Cluster, rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str
) -> None:
    options = ("--namesrv", rocketmq_namesrv, "--topic", f"{rocketmq_topic}-urgent")
    if is_before(rocketmq_cluster.version, "5.4.0"):
        with started("priorities", *options) as process:
            code, output = outcome(process)
        assert code != 0
        assert "message.type" in output
        return

    output = run("priorities", *options, "--group", rocketmq_group)

    received = re.findall(r"^received (\w+), priority \d$", output, re.M)
    assert set(received[:2]) == {"payment", "alarm"}  # one queue
    assert received[2:] == ["delivery", "invoice", "newsletter"]


def test_admin_resets_offsets_and_deletes_its_topic_and_group(
    rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str
) -> None:
    topic = f"{rocketmq_topic}-own"
    options = ("--namesrv", rocketmq_namesrv, "--topic", topic, "--group", rocketmq_group)

    output = run("admin", *options)

    assert f"20 messages in {topic}\n" in output
    assert "the last one is 'order 19'" in output
    assert f"{rocketmq_group} has 10 of 20 messages before it\n" in output
    assert f'{{"group": "{rocketmq_group}", "lag": 0}}\n' in output
    assert output.endswith(f"{topic} is gone: True\n")
