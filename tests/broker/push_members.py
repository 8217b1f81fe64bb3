"""Push consumers of one group in separate processes, and their combined records."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

import msgspec

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from tests.broker.push_worker import Orders
from tests.unit.remoting.until import until

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.02  # minimum interval between reads of the diaries


@dataclass(slots=True, eq=False)
class Delivery:
    """One call of a handler; *ended* is None when its process died first."""

    member: PushMember
    queue: int
    offset: int
    body: str
    started: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as it was sent."""

    queue: int
    offset: int
    at: float


class PushMember:
    """One process and the contents of its diary."""

    def __init__(self, process: asyncio.subprocess.Process, diary: Path) -> None:
        self.process = process
        self.joining = 0.0
        self.ready = False
        self.stalled: float | None = None  # when the latest stall was detected
        self.held: dict[int, float] = {}  # queues, and since when
        self.lost: dict[int, float] = {}  # expired leases, and when that was detected
        self.deliveries: list[Delivery] = []
        self.commits: list[Commit] = []
        self.starts: defaultdict[int, list[float]] = defaultdict(list)
        self._running: dict[int, dict[int, Delivery]] = defaultdict(dict)
        self._diary = diary
        self._read = 0

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def stop(self) -> None:
        """Stop it with SIGTERM."""
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_SECONDS):
            code = await self.process.wait()
        self.look()
        assert code == 0

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.look()
        self.held.clear()

    def look(self) -> None:
        """Read new lines of the diary."""
        if not self._diary.exists():
            return
        with self._diary.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # incomplete line
                self._read += len(line)
                self._note(*msgspec.json.decode(line))

    def _note(self, what: str, at: float, *rest: Any) -> None:  # noqa: ANN401 - as recorded by the worker
        if what == "start":
            queue, offset, body = rest
            self._start(Delivery(self, queue, offset, body, at))
        elif what == "end":
            self._running[rest[0]].pop(rest[1]).ended = at
        elif what == "commit":
            queue, offset = rest
            self.commits.append(Commit(queue, offset, at))
        elif what == "QueuesAssigned":
            self.held.update(dict.fromkeys(rest[0], at))
        elif what == "joining":
            self.joining = at
        elif what == "ready":
            self.ready = True
        elif what == "stalled":
            self.stalled = at
        else:
            self._lose(what, at, rest[0])

    def _start(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.starts[delivery.queue].append(delivery.started)
        self._running[delivery.queue][delivery.offset] = delivery

    def _lose(self, what: str, at: float, queues: list[int]) -> None:
        if what == "LeaseLost":
            self.lost.update(dict.fromkeys(queues, at))
            return
        for queue in queues:
            del self.held[queue]

    def furthest(self, queue: int) -> int:
        """Return the last offset of *queue* passed to a handler, or -1."""
        return max((each.offset for each in self.deliveries if each.queue == queue), default=-1)

    def first_start(self, queue: int, since: float) -> float | None:
        """Return when the first handler of *queue* began at or after *since*."""
        starts = self.starts[queue]
        at = bisect_left(starts, since)
        return starts[at] if at < len(starts) else None


@dataclass
class PushGroup:
    """All members, past and present; *orders* are the settings of each."""

    orders: Orders
    folder: Path
    queues: int
    members: list[PushMember] = field(default_factory=list)
    _looked: float = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            if member.process.returncode is None:
                member.signal(signal.SIGCONT)
            await member.kill()

    @property
    def present(self) -> list[PushMember]:
        return [each for each in self.members if each.process.returncode is None]

    async def join(self, count: int = 1) -> PushMember:
        """Start members, and return the last one once all are ready."""
        new = [await self._start() for _ in range(count)]
        await self.until(lambda: all(each.ready for each in new), "members", START_SECONDS)
        return new[-1]

    async def _start(self) -> PushMember:
        diary = self.folder / f"member-{len(self.members)}.jsonl"
        orders = msgspec.json.encode(self.orders).decode()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.broker.push_worker", str(diary), orders
        )
        member = PushMember(process, diary)
        self.members.append(member)
        return member

    async def until(self, seen: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """Wait until *seen* is true of the diaries."""
        await until(lambda: self._is_new() and seen(), what, seconds)

    def _is_new(self) -> bool:
        if monotonic() - self._looked < LOOK_SECONDS:
            return False
        self.look()
        self._looked = monotonic()
        return True

    def look(self) -> None:
        for member in self.members:
            member.look()

    # --- who owns what --------------------------------------------------------------------------

    async def settled(self, since: float, seconds: float = 30.0) -> float:
        """Return how long after *since* every queue had one owner that delivers from it."""
        await self.until(lambda: self._settled_at(since), "one owner a queue", seconds)
        at = self._settled_at(since)
        assert at is not None
        return round(at - since, 2)

    def _settled_at(self, since: float) -> float | None:
        if not all(self.shares()):
            return None
        firsts: list[float] = []
        for queue in range(self.queues):
            owners = [each for each in self.members if queue in each.held]
            if len(owners) != 1:
                return None
            first = owners[0].first_start(queue, max(since, owners[0].held[queue]))
            if first is None:
                return None
            firsts.append(first)
        return max(firsts)

    def shares(self) -> list[int]:
        """Return how many queues each member has."""
        return [len(each.held) for each in self.present]

    # --- what they did --------------------------------------------------------------------------

    def deliveries(self) -> Iterator[Delivery]:
        for member in self.members:
            yield from member.deliveries

    def done(self) -> Counter[str]:
        """Return how often each body was handled completely."""
        return Counter(each.body for each in self.deliveries() if each.ended is not None)

    def copies(self) -> int:
        """Return the number of repeated deliveries."""
        every = Counter(each.body for each in self.deliveries())
        return every.total() - len(every)

    def by_queue(self) -> dict[int, list[Delivery]]:
        """Return the deliveries of each queue in the order of their starts."""
        queues: defaultdict[int, list[Delivery]] = defaultdict(list)
        for each in sorted(self.deliveries(), key=lambda each: each.started):
            queues[each.queue].append(each)
        return queues

    def overlapped(self) -> list[Delivery]:
        """Return handlers that overlap others of the same queue; a killed one has ended."""
        found: dict[Delivery, None] = {}
        for deliveries in self.by_queue().values():
            longest: Delivery | None = None
            for each in deliveries:
                if longest is not None and (longest.ended or 0.0) > each.started:
                    found[longest] = None
                if longest is None or (each.ended or 0.0) > (longest.ended or 0.0):
                    longest = each
        return list(found)

    def disorder(self) -> list[Delivery]:
        """Return deliveries that skipped a message, or went back within one assignment."""
        found = []
        for deliveries in self.by_queue().values():
            seen, last = -1, None
            for each in deliveries:
                back = last is not None and last.member is each.member
                if each.offset > seen + 1 or (back and last and each.offset <= last.offset):
                    found.append(each)
                seen, last = max(seen, each.offset), each
        return found

    def early_commits(self) -> list[Commit]:
        """Return commits that skipped a message not yet handled."""
        ends: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for each in self.deliveries():
            if each.ended is not None:
                known = ends[each.queue].get(each.offset, each.ended)
                ends[each.queue][each.offset] = min(known, each.ended)
        commits = sorted((c for m in self.members for c in m.commits), key=lambda c: c.at)
        checked: Counter[int] = Counter()
        early = []
        for commit in commits:
            ended = ends[commit.queue]
            span = range(checked[commit.queue], commit.offset)
            if any(ended.get(offset, float("inf")) > commit.at for offset in span):
                early.append(commit)
            checked[commit.queue] = max(checked[commit.queue], commit.offset)
        return early

    def commits_back(self, member: PushMember, since: float) -> list[Commit]:
        """Return commits of *member* after *since* below what others had committed by then."""
        committed: dict[int, int] = {}
        for other in self.members:
            for commit in other.commits:
                if other is not member and commit.at < since:
                    committed[commit.queue] = max(commit.offset, committed.get(commit.queue, 0))
        return [
            commit
            for commit in member.commits
            if commit.at > since and commit.offset < committed.get(commit.queue, 0)
        ]


class Feeding:
    """Sends numbered messages during its block; *stored* are the bodies that were sent ok."""

    def __init__(self, namesrv: str, topic: str, *, pause_seconds: float = 0.001) -> None:
        self.stored: list[str] = []
        self.failed = 0
        self._producer = Producer(f"feeding-{os.getpid()}", namesrv=namesrv)
        self._topic = topic
        self._pause = pause_seconds
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._producer.start()
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._producer.close()

    async def stop(self) -> None:
        """Stop sending; the result of the pending send is unknown."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def more(self, count: int, seconds: float = 30.0) -> None:
        """Wait until *count* more messages are stored."""
        target = len(self.stored) + count
        await until(lambda: len(self.stored) >= target, f"{count} more sends", seconds)

    def missing(self, group: PushGroup) -> set[str]:
        """Return messages that no member of *group* handled completely."""
        return set(self.stored) - group.done().keys()

    async def _send(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                await self._producer.send(Message(self._topic, b"%d" % number))
            except RocketMQError:
                self.failed += 1
                await asyncio.sleep(0.05)
            else:
                self.stored.append(str(number))
                await asyncio.sleep(self._pause)
