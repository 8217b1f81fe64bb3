"""``rmq dev``: options, lines, signals and the kept file."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.cli import dev
from rocketmq_aio.cli.dev import Activity, UsageError, parse
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.protocol.requests.offsets import UpdateConsumerOffset
from tests.fakes.raw_client import RawClient

WITHOUT_EXTRAS = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "click", "pytest"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from rocketmq_aio.cli import main
main()
"""
SECONDS = 30.0


class Process:
    """``rmq dev`` as a process without any extra; *lines* are those it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, begin: str) -> str:
        """Return the next line that begins with *begin*, without the time."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            async for raw in self.process.stdout:
                text = raw.decode().rstrip("\n")
                self.lines.append(text)
                text = text[10:] if text[2:3] == ":" else text
                if text.startswith(begin):
                    return text
        raise AssertionError(f"no line begins with {begin!r}: {self.lines}")

    def close_output(self) -> None:
        """Read no further line, as `head` does."""
        self.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]

    async def namesrv(self) -> str:
        return (await self.line("name server")).rpartition("=")[2]

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def started(*options: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS, "dev", "--port", "0", *options,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def send(namesrv: str, *bodies: bytes, **properties: str) -> None:
    async with Producer("shop", namesrv=namesrv) as producer:
        for body in bodies:
            message = Message("orders", body, tags="new", keys="42", properties=properties)
            await producer.send(message)


async def consume(namesrv: str, topic: str = "orders") -> list[bytes]:
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer("billing", namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        return [message.body for message in await consumer.poll(SECONDS)]


async def test_dev_shows_messages_and_ends_cleanly_without_extras() -> None:
    async with started("--topic", "orders:1") as running:
        namesrv = await running.namesrv()
        assert await running.line("topic") == "topic        orders, 1 queues per broker"
        await send(namesrv, b"hello")

        sent = await running.line("sent")
        assert await consume(namesrv) == [b"hello"]
        consumed = await running.line("consumed")
        code = await running.stop(signal.SIGINT)

    assert sent == "sent      orders  queue 0 offset 0  tag=new  keys=42  hello"
    assert consumed == "consumed  orders by billing  queue 0 offset 0"
    assert code == 0


async def test_keep_saves_at_the_end_and_loads_at_the_start(tmp_path: Path) -> None:
    options = ("--topic", "orders:1", "--keep", str(tmp_path / "data"))
    async with started(*options) as running:
        await send(await running.namesrv(), b"one")
        assert await running.stop() == 0

    async with started(*options, "--quiet") as running:
        namesrv = await running.namesrv()
        bodies = await consume(namesrv)
        assert await running.stop() == 0

    assert bodies == [b"one"]


async def test_light_queues_are_an_option() -> None:
    async with started("--topic", "orders:1", "--light-queues") as running:
        namesrv = await running.namesrv()
        await send(namesrv, b"one", INNER_MULTI_DISPATCH="%LMQ%alice")
        bodies = await consume(namesrv, "%LMQ%alice")
        consumed = await running.line("consumed")

    assert bodies == [b"one"]
    assert consumed == "consumed  %LMQ%alice by billing  queue 0 offset 0"


async def test_a_closed_output_does_not_stop_the_brokers(tmp_path: Path) -> None:
    options = ("--topic", "orders:1", "--keep", str(tmp_path / "data"))
    async with started(*options) as running:
        namesrv = await running.namesrv()
        await running.line("Stop with")
        running.close_output()
        for body in (b"one", b"two"):
            await send(namesrv, body)
        assert await running.stop() == 0

    async with started(*options, "--quiet") as running:
        assert await consume(await running.namesrv()) == [b"one", b"two"]


@pytest.fixture
def unignored_hangups() -> Iterator[None]:
    """Undo the effect of `nohup` on the processes of a test."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_a_closed_terminal_saves_the_data(tmp_path: Path, unignored_hangups: None) -> None:
    async with started("--keep", str(tmp_path / "data")) as running:
        await running.namesrv()
        assert await running.stop(signal.SIGHUP) == 0

    assert (tmp_path / "data").exists()


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "missing" / "data"
    code = dev.run(["--port", "0", "--keep", str(file)])

    error = f"rmq dev: {file} cannot be written: No such file or directory\n"
    assert (code, capfd.readouterr()) == (3, ("", error))


async def test_a_port_in_use_is_named_in_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = await asyncio.to_thread(dev.run, ["--port", str(port)])

    error = capfd.readouterr().err
    assert (
        error == f"rmq dev: port {port} of 127.0.0.1 is in use: stop that server, or use --port\n"
    )
    assert code == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--topic", "a b"), "--topic a b: 'a b' is no topic name"),
        (("--topic", "orders:0"), "expected NAME:QUEUES with 1 to 1024 queues"),
        (("--topic", "orders:many"), "expected NAME:QUEUES"),
        (("--brokers", "0"), "--brokers 0: expected 1 to 26"),
        (("--port", "70000"), r"--port 70000: expected 0 \(any free port\) to 65535"),
        (("--host", "localhost"), "expected an IPv4 address of this machine"),
        (("--host", "0.0.0.0"), "clients cannot connect to it"),
        (("--version", "5.3.0"), "invalid choice: '5.3.0'"),
        (("orders",), "unrecognized arguments: orders"),
    ],
)
def test_a_wrong_option_raises_with_the_reason(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse(arguments)


def test_topics_have_four_queues_by_default() -> None:
    assert parse(["--topic", "a", "--topic", "b:8"]).topics == {"a": 4, "b": 8}


@pytest.fixture
async def lines() -> list[str]:
    """Lines of a window with 3 messages to a queue of `few`, 7 to `many`, 1 to a system topic."""
    shown: list[str] = []
    activity = Activity(shown.append, lambda: 0.0)
    cluster = EmbeddedCluster(topics={"few": 1, "many": 1, "RMQ_SYS_TRACE_TOPIC": 1})
    cluster.on_event(activity.record)
    for topic, count in (("few", 3), ("many", 7), ("RMQ_SYS_TRACE_TOPIC", 1)):
        for number in range(count):
            cluster.broker.put(topic, b"%d" % number)
    activity.end_window()
    return [line[10:] for line in shown]


async def test_many_messages_of_a_topic_are_counted_in_one_line(lines: list[str]) -> None:
    assert len([line for line in lines if line.startswith("sent      few")]) == 3
    many = [line for line in lines if line.startswith("sent      many")]
    assert len(many) == 6
    assert many[-1] == "sent      many  2 more messages, 0.0 MB"


async def test_system_topics_are_not_shown(lines: list[str]) -> None:
    assert len(lines) == 9


async def test_a_new_window_shows_single_messages_again() -> None:
    shown: list[str] = []
    activity = Activity(shown.append)
    cluster = EmbeddedCluster(topics={"orders": 1})
    cluster.on_event(activity.record)
    for number in range(6):
        cluster.broker.put("orders", b"%d" % number)
    activity.end_window()
    del shown[:]

    cluster.broker.put("orders", b"x" * 100)
    cluster.broker.put("orders", b"\xff\x00")
    activity.end_window()

    assert [line.rpartition("  ")[2] for line in shown] == ["x" * 60 + "... (100 bytes)", "2 bytes"]


@pytest.mark.parametrize(
    ("body", "properties", "text"),
    [
        (b"x" + "ä".encode() * 30, "", "x" + "ä" * 29 + "... (61 bytes)"),  # whole characters
        (b"body", "TAGS\x01a\x1b[2J\x02", "tag=a [2J  body"),  # no control characters
    ],
)
async def test_a_text_is_shown_in_a_safe_form(body: bytes, properties: str, text: str) -> None:
    shown: list[str] = []
    cluster = EmbeddedCluster(topics={"orders": 1})
    cluster.on_event(Activity(shown.append).record)

    cluster.broker.put("orders", body, properties=properties)

    assert [line[10:] for line in shown] == [f"sent      orders  queue 0 offset 0  {text}"]


async def test_commits_of_groups_are_shown() -> None:
    shown: list[str] = []
    activity = Activity(shown.append)
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        cluster.on_event(activity.record)
        cluster.create_group("billing")
        async with RawClient(cluster.broker.address) as client:
            for offset in (0, 0, 1, 1, 2, 3, 4, 5, 6, 7):
                await client.ask(
                    UpdateConsumerOffset(
                        consumer_group="billing", topic="orders", queue_id=0, commit_offset=offset
                    )
                )
    activity.end_window()

    assert [line[10:] for line in shown] == [
        *[f"committed orders by billing  queue 0 offset {offset}" for offset in range(1, 6)],
        "committed orders by billing  2 more commits",
    ]


async def test_the_host_is_given_to_clients() -> None:
    async with EmbeddedCluster(topics={"orders": 1}, host="127.0.0.2") as cluster:
        await send(cluster.namesrv, b"hello")
        addresses = (cluster.namesrv, cluster.broker.address)
        bodies = await consume(cluster.namesrv)

    assert [address.rpartition(":")[0] for address in addresses] == ["127.0.0.2", "127.0.0.2"]
    assert bodies == [b"hello"]
