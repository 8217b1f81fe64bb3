"""Parts shared by the rules: findings, and the order of events of a queue."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from rocketmq_aio.model.names import INTERNAL_PREFIXES, UNSENDABLE_TOPICS
from rocketmq_aio.model.values import MessageQueue
from tests.history.events import Delivered, Epoch, Event, Handled, LogEntry, Sent
from tests.history.history import History

NEVER = float("inf")
E = TypeVar("E", bound=Event)


class Finding(NamedTuple):
    """A violated rule, and the events that prove it."""

    what: str
    proof: tuple[object, ...] = ()


Rule = Callable[[History], Iterator[Finding]]


class GroupQueue(NamedTuple):
    """A queue, as a group has it; in broadcasting *group* is a group and a consumer."""

    group: str
    queue: MessageQueue


def is_internal(topic: str) -> bool:
    """Whether *topic* holds copies that brokers or consumers made."""
    return topic in UNSENDABLE_TOPICS or topic.startswith(INTERNAL_PREFIXES)


def copies(history: History) -> dict[str, list[LogEntry]]:
    """Return the stored copies of each message that producers sent, in the order of the log."""
    places: dict[str, list[LogEntry]] = defaultdict(list)
    for entry in sorted(history.log, key=lambda e: (e.queue, e.offset)):
        if not is_internal(entry.queue.topic):
            places[entry.identity].append(entry)
    return places


def is_copied_by_timers(history: History, sent: Sent) -> bool:
    """Whether brokers may have added copies of a delayed message.

    They flush their timer wheel at intervals, and read it from there after a kill: 5.5.0, killed
    some seconds after its last flush, stored delayed messages of that time two and three times.
    """
    if not sent.delayed:
        return False
    killed = (each for each in history.faults if each.kind == "broker")
    if sent.queue is not None:
        killed = (each for each in killed if each.target == sent.queue.broker_name)
    return any(fault.healed >= sent.started for fault in killed)


def process_of(number: str) -> str:
    """Return the process of the recorder that gave *number*."""
    return number.rpartition("-")[0]


def scope(history: History, group: str, consumer: str) -> str:
    """Return whose progress the consumer shares: that of its group, or its own."""
    member = history.members.get(consumer)
    if member is None or not member.broadcast:
        return group
    return f"{group}@{member.store or consumer}"


def receptions(history: History) -> Iterator[Delivered | Handled]:
    """Return what consumers got, except by pulls at offsets that the application chose."""
    yield from history.handled
    for each in history.deliveries:
        member = history.members.get(each.consumer)
        if member is None or member.kind != "pull":
            yield each


def first_settled(history: History) -> dict[tuple[str, MessageQueue, int], float]:
    """Return when each copy was settled first, by group, queue and offset."""
    first: dict[tuple[str, MessageQueue, int], float] = {}
    for each in history.settled:
        key = (scope(history, each.group, each.consumer), each.queue, each.offset)
        first[key] = min(each.at, first.get(key, each.at))
    return first


def expected_offsets(history: History, group: str) -> dict[MessageQueue, list[int]]:
    """Return the offsets that *group* has to consume; without a log, those that it got."""
    if history.log:
        return history.visible_offsets(group)
    offsets: dict[MessageQueue, set[int]] = defaultdict(set)
    for each in receptions(history):
        if each.group == group:
            offsets[each.queue].add(each.offset)
    return {queue: sorted(found) for queue, found in offsets.items()}


class Epochs:
    """Finds the epoch of a time."""

    def __init__(self, history: History) -> None:
        self._epochs: dict[tuple[str, str, MessageQueue], list[Epoch]] = defaultdict(list)
        self.by_number: dict[int, Epoch] = {}
        self.groups = {epoch.group for epoch in history.epochs}
        for epoch in sorted(history.epochs, key=lambda e: e.started):
            self._epochs[epoch.group, epoch.consumer, epoch.queue].append(epoch)
            self.by_number[epoch.number] = epoch

    def at(self, group: str, consumer: str, queue: MessageQueue, at: float) -> Epoch | None:
        """Return the epoch of the queue at a consumer at that time."""
        epochs = self._epochs.get((group, consumer, queue), [])
        place = bisect_right(epochs, at, key=lambda epoch: epoch.started)
        epoch = epochs[place - 1] if place else None
        return epoch if epoch is not None and epoch.covers(at) else None


def by_queue(events: Iterable[E], key: Callable[[E], GroupQueue]) -> dict[GroupQueue, list[E]]:
    """Return *events* by queue, in their order."""
    grouped: dict[GroupQueue, list[E]] = defaultdict(list)
    for each in events:
        grouped[key(each)].append(each)
    return grouped
