"""Transaction log: what a producer knows of its transactions when brokers check them.

The latest decisions are kept as they are, older ones in 8 bytes each.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import Final, TypeAlias

from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.half_message import HalfMessage

# A broker that falls behind checks commits that it has confirmed, minutes later.  A broker that
# does not discards a transaction after 15 checks: after 15 minutes (4.9) or 8 (5.x).  For older
# decisions the application's check answers.
KEPT_SECONDS: Final = 1800.0
MAX_DECISIONS: Final = 4_000_000
BLOCK: Final = 2048  # decisions that are packed at once
OUTCOME_BITS: Final = 16  # of the number of an outcome in its block
MAX_OUTCOME: Final = (1 << OUTCOME_BITS) - 1
TAIL_DIGITS: Final = 12  # of a message id: time and counter; the process determines the rest


# What a later check needs of a half message; many share one: the fields of `HalfMessage` topic,
# state, confirmed, confirmed_by, unanswered_by and unanswered_over.
Outcome: TypeAlias = tuple[
    str, TransactionState | None, tuple[str, int] | None, str | None, str | None, int
]


class PackedDecisions:
    """Decisions in sorted numbers: the tail of the message id, then the number of the outcome."""

    def __init__(self, halves: Iterable[HalfMessage]) -> None:
        self.packed_at = monotonic()
        outcomes: dict[Outcome, int] = {}
        last, number = None, 0  # most are equal, and comparing costs less than hashing
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        self._committed_at = -inf  # the latest: an older commit counts as recorded later
        for half in halves:
            if (tail := _tail(half.message_id)) is None:
                continue  # made by another client
            outcome = (
                half.topic,
                half.state,
                half.confirmed,
                half.confirmed_by,
                half.unanswered_by,
                half.unanswered_over,
            )
            if outcome != last:
                last, number = outcome, outcomes.setdefault(outcome, len(outcomes))
            numbers[half.message_id[:-TAIL_DIGITS]].append(tail << OUTCOME_BITS | number)
            self._committed_at = max(self._committed_at, half.committed_at)
        self._outcomes = list(outcomes)
        self._numbers = {begin: array("Q", sorted(found)) for begin, found in numbers.items()}

    def find(self, message_id: str, begin: str, number: int) -> HalfMessage | None:
        """Return the decision about *message_id*.

        :param begin: of the id, before its tail
        :param number: the least one with the tail
        """
        numbers = self._numbers.get(begin)
        if numbers is None or numbers[0] > number + MAX_OUTCOME or numbers[-1] < number:
            return None
        found = numbers[bisect_left(numbers, number)]
        if found > number + MAX_OUTCOME:
            return None
        topic, state, confirmed, confirmed_by, unanswered_by, over = self._outcomes[found - number]
        return HalfMessage(
            message_id,
            topic,
            transaction_id=message_id,  # as brokers set it
            state=state,
            confirmed=confirmed,
            confirmed_by=confirmed_by,
            unanswered_by=unanswered_by,
            unanswered_over=over,
            committed_at=self._committed_at,
        )


class Decisions:
    """The latest decisions of a producer, by message id.

    :param most: at least so many are kept for `KEPT_SECONDS`
    """

    def __init__(self, most: int = MAX_DECISIONS) -> None:
        self._latest: dict[str, HalfMessage] = {}
        self._added = 0  # since the last block
        self._before: dict[str, HalfMessage] = {}  # the latest ones before those
        self._packed: deque[PackedDecisions] = deque(maxlen=-(-most // BLOCK))

    def add(self, half: HalfMessage) -> None:
        """Add *half*, which is the same object for as long as its decision is being sent."""
        self._latest[half.message_id] = half
        self._added += 1  # not the length: thousands that are being sent may stay
        if self._added < BLOCK:
            return
        self._added = 0
        before, self._before, self._latest = self._before, self._latest, {}
        self._latest.update((key, each) for key, each in before.items() if each.is_ending)
        self._packed.append(PackedDecisions(e for e in before.values() if not e.is_ending))
        while self._packed[0].packed_at < monotonic() - KEPT_SECONDS:
            self._packed.popleft()

    def find(self, message_id: str) -> HalfMessage | None:
        found = self._latest.get(message_id) or self._before.get(message_id)
        if found is not None:
            return found
        if (tail := _tail(message_id)) is None:
            return None
        begin, number = message_id[:-TAIL_DIGITS], tail << OUTCOME_BITS
        for packed in reversed(self._packed):
            if (found := packed.find(message_id, begin, number)) is not None:
                self.add(found)  # it may change
                return found
        return None


class TransactionLog:
    """The transactions in progress and the latest decisions of a producer."""

    def __init__(self) -> None:
        self._in_progress: dict[str, HalfMessage] = {}
        self._decisions = Decisions()
        self._idle: asyncio.Future[None] | None = None

    def begin(self, half: HalfMessage) -> None:
        self._in_progress[half.message_id] = half

    def decide(self, half: HalfMessage, state: TransactionState) -> None:
        half.state = state
        self._decisions.add(half)

    def end(self, half: HalfMessage) -> None:
        """Record that the transaction is over here; a broker may still check it."""
        self._in_progress.pop(half.message_id, None)
        half.message = None  # the decision is kept, and bodies can be large
        if self._idle is not None and not self._in_progress and not self._idle.done():
            self._idle.set_result(None)

    def find(self, message_id: str) -> HalfMessage | None:
        return self._in_progress.get(message_id) or self._decisions.find(message_id)

    async def wait_until_idle(self) -> None:
        if self._in_progress:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle


def _tail(message_id: str) -> int | None:
    try:
        number = int(message_id[-TAIL_DIGITS:], 16)
    except ValueError:
        return None
    return number if number >= 0 else None  # "-" may precede the digits in ids of other clients
