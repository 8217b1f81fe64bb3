"""Record of a run: the history of all its processes, and a line for each event."""

from __future__ import annotations

import logging
import traceback
from collections import defaultdict

import msgspec

from rocketmq_aio.model.message import MessageExt
from tests.chaos.loop import START_SECONDS, SimulatedLoop
from tests.history import UID, History, Outcome, Recorder
from tests.history.events import Event, Recalled, SendEnded, Sent

_encode = msgspec.json.Encoder().encode


class Record(logging.Handler):
    """Collects what happens, and what is wrong apart from the rules of the history."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.WARNING)
        self.history = History()
        self.lines: list[str] = []
        self.violations: list[str] = []
        self._loop = loop
        self._sent: dict[str, Sent] = {}  # by number
        self._expected: dict[str, list[str]] = defaultdict(list)  # uids by topic
        self._done: dict[str, set[str]] = defaultdict(set)  # uids by group

    def now(self) -> float:
        return self._loop.time() - START_SECONDS

    def add(self, *words: object) -> None:
        """Add a line."""
        self.lines.append(f"{self.now():.6f} " + " ".join(map(str, words)))

    def event(self, event: Event) -> None:
        """Add an event of a client to the history."""
        self.add(_encode(event).decode())
        self.history.add(event)
        if isinstance(event, Sent):
            self._sent[event.number] = event
        elif isinstance(event, SendEnded) and event.outcome is Outcome.OK:
            sent = self._sent[event.number]
            if not sent.transaction:
                self._expected[sent.topic].append(sent.uid)
        elif isinstance(event, Recalled):
            for expected in self._expected.values():
                if event.uid in expected:
                    expected.remove(event.uid)

    def violation(self, text: str) -> None:
        self.add("VIOLATION", text)
        self.violations.append(f"{self.now():.3f} s: {text}")

    def failure(self, what: str, error: BaseException) -> None:
        self.violation(f"{what} {''.join(traceback.format_exception(error))}")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the warnings of clients; their errors are violations."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {record.exc_info[1]!r}"
        self.add("log", record.levelname, text)
        if record.levelno >= logging.ERROR:
            if record.exc_info and record.exc_info[1] is not None:
                self.failure(text, record.exc_info[1])
            else:
                self.violation(text)

    # --- end of a run ---------------------------------------------------------------------------

    def committed(self, uid: str, topic: str) -> None:
        """Note that the groups of *topic* have to get the message of a transaction."""
        self._expected[topic].append(uid)

    def done(self, group: str, message: MessageExt) -> None:
        self._done[group].add(message.properties.get(UID, ""))

    def is_drained(self, group: str, topic: str) -> bool:
        """Whether *group* has processed all messages that were surely stored."""
        return self._done[group].issuperset(self._expected[topic])


class MemberRecorder(Recorder):
    """Records a client of a process into the record of the run."""

    def __init__(self, record: Record, process: str) -> None:
        super().__init__(process=process)
        self._record = record

    def add(self, event: Event) -> None:
        self._record.event(event)
