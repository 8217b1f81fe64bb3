"""Recorded clients on the embedded broker: runs of correct clients violate no rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from tests.history import History, Recorder, check, duplicates
from tests.unit.history.runs import COUNT, TAGS, TOPIC, Run

RUNS: dict[str, tuple[Callable[[Run], Awaitable[None]], set[str]]] = {
    "sends": (Run.send, set()),
    "lost responses": (Run.send_through_faults, set()),
    "concurrent": (Run.push, {"retry"}),
    "orderly": (partial(Run.push, orderly=True), {"retry"}),
    "filtered": (partial(Run.push, selector=TAGS[0]), set()),
    "cancelled": (Run.push_cancelled, {"retry"}),
    "popped": (Run.push_popped, set()),
    "poll": (Run.poll, {"seek"}),
    "pause": (Run.pause, set()),
    "pull": (Run.pull, set()),
    "broadcast": (Run.broadcast, set()),
    "delay": (Run.delay, set()),
    "request": (Run.request, set()),
    "pop": (Run.pop, {"expired"}),
    "transactions": (Run.transactions, set()),
    "early check": (Run.transaction_checked_early, set()),
    "stream": (Run.stream, set()),
}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(topics={TOPIC: 2}) as cluster:
        yield cluster


@pytest.mark.parametrize("name", RUNS)
async def test_a_run_without_defects_violates_no_rule(cluster: EmbeddedCluster, name: str) -> None:
    act, reasons = RUNS[name]
    run = Run(cluster)
    await act(run)
    history = run.finished()

    assert check(history) == []
    found = Counter(each.reason for each in duplicates(history))
    assert reasons <= set(found) <= {*reasons, "rebalance", "sent twice"}


async def test_a_history_from_files_is_the_history_in_memory(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Events of one process, recorded twice: each client by a recorder with a file."""
    recorder = Recorder(tmp_path, "main")
    in_memory = recorder.history
    write = recorder.add

    def both(event: object) -> None:
        write(event)  # type: ignore[arg-type]
        in_memory.add(event)  # type: ignore[arg-type]

    recorder.add = both  # type: ignore[method-assign]
    run = Run(cluster, recorder)
    await run.push(orderly=True)
    run.finished()
    recorder.close()
    with (tmp_path / "main.history.jsonl").open("ab") as file:
        file.write(b'{"type":"Commit","at":1')  # cut by a kill
    loaded = History.load(tmp_path)

    assert check(loaded) == []
    assert loaded.sends == in_memory.sends
    assert loaded.handled == in_memory.handled
    assert loaded.settled == in_memory.settled
    assert loaded.commits == in_memory.commits
    assert loaded.epochs == in_memory.epochs
    assert len(loaded.sends) == COUNT + 4
