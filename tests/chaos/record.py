"""Record of a run: everything that clients and brokers did, in order, with virtual times."""

from __future__ import annotations

import logging
import traceback
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.loop import START_SECONDS, SimulatedLoop

Place = tuple[str, str, int, int]  # broker, topic, queue id, offset


@dataclass
class Sent:
    """A message of the workload.

    :ivar outcome: "" while unknown to the application, "ok", "failed", "unknown", "rolled back"
    """

    uid: str
    topic: str
    key: str
    outcome: str = ""


class Record(logging.Handler):
    """Events as lines of text, and what the checks need of them."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.WARNING)
        self.loop = loop
        self.lines: list[str] = []
        self.violations: list[str] = []
        self.sends: dict[str, Sent] = {}
        self.stored: dict[Place, str] = {}
        self.places: dict[str, list[Place]] = defaultdict(list)  # by message
        self.done: dict[str, set[str]] = defaultdict(set)  # by group
        self.settled: dict[str, set[Place]] = defaultdict(set)  # by group
        self.deliveries: dict[tuple[str, str], int] = defaultdict(int)
        self.uncovered: dict[tuple[str, str, str, int], int] = {}  # checked up to here

    def now(self) -> float:
        return self.loop.time() - START_SECONDS

    def add(self, *event: object) -> None:
        self.lines.append(f"{self.now():.6f} " + " ".join(map(str, event)))

    def violation(self, text: str) -> None:
        self.add("VIOLATION", text)
        self.violations.append(f"{self.now():.3f} s: {text}")

    def failure(self, what: str, error: BaseException) -> None:
        self.violation(f"{what} {''.join(traceback.format_exception(error))}")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep warnings of the client; its errors are violations."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {record.exc_info[1]!r}"
        self.add("log", record.levelname, text)
        if record.levelno >= logging.ERROR:
            if record.exc_info and record.exc_info[1] is not None:
                self.failure(text, record.exc_info[1])
            else:
                self.violation(text)

    # --- messages -------------------------------------------------------------------------------

    def sending(self, uid: str, topic: str, key: str = "") -> None:
        self.sends[uid] = Sent(uid, topic, key)
        self.add("sending", uid, topic, key)

    def sent(self, uids: Iterable[str], outcome: str, what: object = "") -> None:
        for uid in uids:
            self.sends[uid].outcome = outcome
            self.add("sent", uid, outcome, what)

    def store(self, place: Place, topic: str, body: bytes) -> None:
        """Note that a broker stored a message.

        :param topic: where it will be delivered
        """
        uid = body.decode(errors="replace")
        self.stored[place] = uid
        self.add("stored", *place, uid, "" if topic == place[1] else topic)
        for prefix in ("%RETRY%", "%DLQ%"):
            if topic.startswith(prefix):
                self.done_elsewhere(topic.removeprefix(prefix), uid)
        self.places[uid].append(place)

    def done_elsewhere(self, group: str, uid: str) -> None:
        """A message was stored again for *group*: it is settled where it was."""
        if self.deliveries.get((group, uid)):
            self.settled[group].update(self.places[uid])

    def delivered(self, who: str, group: str, place: Place, body: bytes, tries: int) -> None:
        uid = body.decode(errors="replace")
        self.add("delivered", who, *place, uid, tries)
        self.deliveries[group, uid] += 1
        sent = self.sends.get(uid)
        if sent is None:
            self.violation(f"{who} got {uid!r}, which nobody sent")
        elif sent.outcome in ("failed", "rolled back"):
            self.violation(f"{who} got {uid}, whose send {sent.outcome}")

    def processed(self, who: str, group: str, place: Place, body: bytes) -> None:
        uid = body.decode(errors="replace")
        self.add("done", who, *place, uid)
        self.done[group].add(uid)
        self.settled[group].add(place)

    def committed(self, broker: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Check that everything below a committed offset is settled."""
        self.add("commit", broker, group, topic, queue_id, offset)
        key = (broker, group, topic, queue_id)
        checked = self.uncovered.get(key, 0)
        for each in range(checked, offset):
            place = (broker, topic, queue_id, each)
            if place in self.stored and place not in self.settled[group]:
                self.violation(
                    f"{group} committed {offset} of {topic} {queue_id} at {broker}, but {each} "
                    f"({self.stored[place]}) is not done"
                )
                return
        self.uncovered[key] = max(checked, offset)

    def missing(self, group: str, topic: str) -> list[str]:
        """Return messages that *group* has to get, and has not."""
        done = self.done[group]
        return [
            each.uid
            for each in self.sends.values()
            if each.topic == topic and each.outcome == "ok" and each.uid not in done
        ]


@dataclass
class Commits(dict[tuple[str, str, int], int]):
    """Committed offsets of a broker, which record their changes."""

    record: Record
    broker: str
    groups: set[str] = field(default_factory=set)

    def __setitem__(self, key: tuple[str, str, int], offset: int) -> None:
        super().__setitem__(key, offset)
        if key[0] in self.groups:
            self.record.committed(self.broker, *key, offset)
