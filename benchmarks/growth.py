"""Cost of growth: an idle client with 1 to 1,000 queues, topics, groups and connections.

The cluster is the embedded one, in a process of its own.  CPU is the client's and is measured
while no message is sent: a busy machine makes it slower, not larger.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import machine, plot, report, sample
from benchmarks.results import Results, Spread, figures
from benchmarks.sample import Sample
from benchmarks.subject.measure import tell_result
from rocketmq_aio import (
    ClientConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MQClientInstance,
    Producer,
    PushConsumer,
)
from rocketmq_aio.embedded import EmbeddedCluster
from rocketmq_aio.remoting.gather import gather_limited

KIND: Final = "growth"
TITLE: Final = "Cost of growth"
QUEUES: Final = (1, 100, 1000)
BROKERS: Final = (1, 10, 100)
IDLE_CORES: Final = 0.03  # the most for an idle client of 1,000 queues
IDLE_MIB: Final = 200.0
# Cost per unit between two sizes, as a multiple of that between the two before; from 1, 100 and
# 1,000 a growth with the power of 1.3 gives 2.1, quadratic growth 11.
LINEAR: Final = 2.0
LEAST: Final = {"client_cores": 0.002, "rss_now_mib": 4.0, "start_cpu_seconds": 0.1}  # is noise
READY_SECONDS: Final = 300.0
PAUSE_SECONDS: Final = 2.0  # first commits and further checks belong to the start
CONCURRENT: Final = 16  # clients that start or close at a time
Start = Callable[[str, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Dimension:
    """Something of which a client has *sizes*; *topics* and *brokers* are those of the cluster."""

    title: str
    sizes: tuple[int, ...]
    open: Callable[[AsyncExitStack, str, int], Awaitable[None]]
    topics: Callable[[int], Mapping[str, int]]
    brokers: Callable[[int], int] = lambda size: 1
    has_idle_bar: bool = False


def _one_topic(size: int) -> Mapping[str, int]:
    return {"topic-0": 1}


def _topics(size: int) -> Mapping[str, int]:
    return {f"topic-{number}": 1 for number in range(size)}


def _wide_topic(size: int) -> Mapping[str, int]:
    return {"topic-0": size}


async def _ignore(message: MessageExt) -> None:
    """Handle a message; there are none."""


async def _poll(consumer: LitePullConsumer) -> None:
    while True:
        await consumer.poll(timeout_seconds=10)


async def _lite_pull(stack: AsyncExitStack, namesrv: str, topics: int, group: str) -> None:
    """Open a lite pull consumer that waits in `poll`."""
    consumer = LitePullConsumer(group, namesrv=namesrv)
    for number in range(topics):
        await consumer.subscribe(f"topic-{number}")
    await stack.enter_async_context(consumer)
    await consumer.ready(READY_SECONDS)
    polling = asyncio.create_task(_poll(consumer))
    stack.callback(polling.cancel)


async def pulled_queues(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    await _lite_pull(stack, namesrv, 1, "growth")


async def pushed_queues(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    consumer = PushConsumer("growth", namesrv=namesrv, on_message=_ignore)
    await stack.enter_async_context(consumer)
    await consumer.subscribe("topic-0")
    await consumer.ready(READY_SECONDS)


async def consumed_topics(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    await _lite_pull(stack, namesrv, size, "growth")


async def sent_topics(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    producer = await stack.enter_async_context(Producer("growth", namesrv=namesrv))
    for number in range(size):
        await producer.send(Message(f"topic-{number}", b"x"))


async def groups(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    """Open push consumers of many groups, which share connections."""
    instance = await stack.enter_async_context(MQClientInstance(ClientConfig(namesrv=namesrv)))
    consumers: list[PushConsumer] = []

    async def open_one(number: int) -> None:
        consumer = PushConsumer(f"growth-{number}", client=instance, on_message=_ignore)
        await consumer.start()
        consumers.append(consumer)
        await consumer.subscribe("topic-0")
        await consumer.ready(READY_SECONDS)

    stack.push_async_callback(_close_all, consumers)
    await _open_all(open_one, size)


async def connections(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    """Open lite pull consumers, each with connections of its own."""

    async def open_one(number: int) -> None:
        await _lite_pull(stack, namesrv, 1, f"growth-{number}")

    await _open_all(open_one, size)


async def brokers(stack: AsyncExitStack, namesrv: str, size: int) -> None:
    """Open a consumer of a queue of each broker, and a producer."""
    await _lite_pull(stack, namesrv, 1, "growth")
    producer = await stack.enter_async_context(Producer("growth", namesrv=namesrv))
    for _ in range(size):
        await producer.send(Message("topic-0", b"x"))


async def _open_all(open_one: Callable[[int], Awaitable[None]], size: int) -> None:
    opened = await gather_limited(open_one, range(size), CONCURRENT)
    for error in opened.failures.values():
        raise error


async def _close_all(consumers: list[PushConsumer]) -> None:
    await gather_limited(lambda each: each.close(), consumers, CONCURRENT)


DIMENSIONS: Final = {
    "pulled-queues": Dimension(
        "queues of a lite pull consumer", QUEUES, pulled_queues, _wide_topic, has_idle_bar=True
    ),
    "pushed-queues": Dimension(
        "queues of a push consumer", QUEUES, pushed_queues, _wide_topic, has_idle_bar=True
    ),
    "consumed-topics": Dimension("topics of a consumer", QUEUES, consumed_topics, _topics),
    "sent-topics": Dimension("topics of a producer", QUEUES, sent_topics, _topics),
    "groups": Dimension("push consumers on shared connections", QUEUES, groups, _one_topic),
    "connections": Dimension("consumers with own connections", BROKERS, connections, _one_topic),
    "brokers": Dimension("brokers", BROKERS, brokers, _one_topic, brokers=lambda size: size),
}


# --- the command ----------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dimensions", default=",".join(DIMENSIONS), metavar="A,B", help="default: all")
    add("--seconds", type=float, default=20.0, help="of an idle window, 20 by default")
    add("--rounds", type=int, default=3, help="3 by default")
    add("--largest", type=int, default=1000, help="leave larger sizes out")


def run(parsed: argparse.Namespace) -> None:
    """Measure, print the table, draw the plot; exit code 1 if a bar is missed."""
    names = parsed.dimensions.split(",")
    if unknown := set(names) - DIMENSIONS.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: choose from {', '.join(DIMENSIONS)}")
    samples: list[Sample] = []
    try:
        for round_number in range(parsed.rounds):
            for name in names:
                for size in DIMENSIONS[name].sizes:
                    if size <= parsed.largest:
                        samples.append(_measure(name, size, round_number, parsed.seconds))
    finally:  # keeps the samples taken before an interruption
        if samples:
            _finish(samples, parsed)
    missed = list(misses(samples))
    print("\n".join(missed) or "Nothing grows faster than linearly.")
    if missed:
        sys.exit(1)


def _finish(samples: list[Sample], parsed: argparse.Namespace) -> None:
    settings: dict[str, str | int | float] = {"rounds": parsed.rounds, "seconds": parsed.seconds}
    results = Results.taken_now(KIND, settings, samples)
    path = results.save()
    print(f"\n{report.describe(results)}\n\n{report.as_text(table(samples))}\n{path}")
    draw(results, path.with_suffix(".png"))
    print(path.with_suffix(".png"))


def draw(results: Results, path: Path) -> None:
    titles = {name: each.title for name, each in DIMENSIONS.items()}
    plot.draw_growth(results, path, titles)


def _measure(name: str, size: int, round_number: int, seconds: float) -> Sample:
    with _serving(name, size) as (namesrv, server):
        command = [sys.executable, "-m", __name__, "client", name, str(size), namesrv, str(seconds)]
        taken = sample.run(command, brokers=[server], timeout_seconds=10 * READY_SECONDS)
    is_quiet = taken["other_cores"] <= sample.MAX_OTHER_CORES
    shown = ", ".join(f"{key} {value:.4g}" for key, value in taken.items())
    print(f"{name} {size}: {shown}", flush=True)
    return Sample(
        workload=name,
        subject=str(size),
        round_number=round_number,
        clean=is_quiet,
        figures=taken | {"load": os.getloadavg()[0]},
    )


@contextmanager
def _serving(name: str, size: int) -> Iterator[tuple[str, int]]:
    """Run the cluster in a process of its own; yield its name server and the process id."""
    command = [sys.executable, "-m", __name__, "serve", name, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().decode().strip(), server.pid
        finally:
            server.stdin.close()  # ends it


COLUMNS: Final = (
    ("idle % of a core", "client_cores", lambda value: f"{value * 100:.2f}"),
    ("RSS MiB", "rss_now_mib", lambda value: f"{value:.0f}"),
    ("start: CPU s", "start_cpu_seconds", lambda value: f"{value:.2f}"),
    ("start: s", "start_seconds", lambda value: f"{value:.2f}"),
    ("close: s", "close_seconds", lambda value: f"{value:.2f}"),
)


def table(samples: list[Sample]) -> list[list[str]]:
    """Return a row for each size of each dimension: medians with their ranges."""
    rows = [["number of", "", *(title for title, _, _ in COLUMNS), "load"]]
    for name, size in dict.fromkeys((each.workload, each.subject) for each in samples):
        spreads = [Spread.of(figures(samples, name, size, key).values()) for _, key, _ in COLUMNS]
        cells = [
            report.spread_text(spread, show)
            for spread, (_, _, show) in zip(spreads, COLUMNS, strict=True)
        ]
        load = Spread.of(figures(samples, name, size, "load").values())
        rows.append(
            [DIMENSIONS[name].title, size, *cells, report.spread_text(load, "{:.1f}".format)]
        )
    return rows


def misses(samples: list[Sample]) -> Iterator[str]:
    """Yield what grows faster than linearly, and idle clients above the bars."""
    for name in dict.fromkeys(each.workload for each in samples):
        dimension = DIMENSIONS[name]
        sizes = sorted({int(each.subject) for each in samples if each.workload == name})
        for figure, noise in LEAST.items():
            lowest = [
                min(figures(samples, name, str(size), figure).values(), default=0.0)
                for size in sizes
            ]
            for at in range(2, len(sizes)):
                before = max(lowest[at - 1] - lowest[at - 2], noise) / (
                    sizes[at - 1] - sizes[at - 2]
                )
                after = (lowest[at] - lowest[at - 1]) / (sizes[at] - sizes[at - 1])
                if after > before * LINEAR:
                    times = after / before
                    yield (
                        f"{dimension.title}: {figure} per unit is {times:.1f} times as large "
                        f"from {sizes[at - 1]} to {sizes[at]} as from {sizes[at - 2]}"
                    )
            bar = {"client_cores": IDLE_CORES, "rss_now_mib": IDLE_MIB}.get(figure)
            if dimension.has_idle_bar and bar is not None and lowest[-1] > bar:
                yield f"{dimension.title}: {figure} is {lowest[-1]:.3g} at {sizes[-1]}, above {bar}"


# --- its processes --------------------------------------------------------------------------------


async def _serve(name: str, size: int) -> None:
    dimension = DIMENSIONS[name]
    cluster = EmbeddedCluster(dimension.brokers(size), topics=dimension.topics(size))
    async with cluster:
        print(cluster.namesrv, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


@asynccontextmanager
async def _opened(name: str, namesrv: str, size: int) -> AsyncIterator[dict[str, float]]:
    taken: dict[str, float] = {}
    begun, used = time.perf_counter(), time.process_time()
    async with AsyncExitStack() as stack:
        await DIMENSIONS[name].open(stack, namesrv, size)
        taken["start_seconds"] = time.perf_counter() - begun
        await asyncio.sleep(PAUSE_SECONDS)
        taken["start_cpu_seconds"] = time.process_time() - used
        yield taken
        begun = time.perf_counter()
    taken["close_seconds"] = time.perf_counter() - begun


async def _run_client(name: str, size: int, namesrv: str, seconds: float) -> None:
    async with _opened(name, namesrv, size) as taken:
        gc.collect()
        print("START", flush=True)
        begun, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        taken["cpu_seconds"] = time.process_time() - used
        taken["seconds"] = time.perf_counter() - begun
        taken["rss_now_mib"] = machine.memory_mib(os.getpid(), "VmRSS")
        print("STOP", flush=True)
    tell_result(**taken)


def _main(what: str, name: str, size: str, *rest: str) -> None:
    if what == "serve":
        asyncio.run(_serve(name, int(size)))
    else:
        namesrv, seconds = rest
        asyncio.run(_run_client(name, int(size), namesrv, float(seconds)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
