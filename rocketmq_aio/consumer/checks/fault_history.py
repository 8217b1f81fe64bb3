"""Fault history: decides when a fault of a group has lasted long enough to be reported.

That is seconds if members have only joined: a new member is configured differently.  If members
leave, too, a deployment may be replacing them one by one: the fault has to last while the group
does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SETTLE_SECONDS: Final = 5.0  # after a join; members subscribe to several topics one by one
JOIN_SECONDS: Final = 30.0  # a fault that begins within this time of a join came with it
QUIET_SECONDS: Final = 120.0  # without joins and departures: no deployment is under way
LONGEST_SECONDS: Final = 900.0  # a fault that lasts this long is always reported
# Brokers list a connection that was cut without notice for up to 130 s.
UNPROVEN_SECONDS: Final = 180.0
GAP_SECONDS: Final = 60.0  # heartbeats, 30 s apart, can hide a fault in between
GONE_SECONDS: Final = 300.0  # unseen for this long, a reported fault is over
LEAST_OCCURRENCES: Final = 3


@dataclass(slots=True)
class _Record:
    first: float
    near_join: bool
    last: float = 0.0
    proven: float | None = None  # since when it is certain
    occurrences: int = 0
    reported: bool = False


class FaultHistory(Generic[K]):
    """The faults seen by samples of a group; methods take the time of the sample in seconds."""

    def __init__(self, now: float) -> None:
        self._members: frozenset[Hashable] | None = None
        self._records: dict[K, _Record] = {}
        self._joined = now
        self._left: float | None = None

    def note_members(self, members: Iterable[Hashable], now: float) -> None:
        """Compare *members* with those of the last sample."""
        before, self._members = self._members, frozenset(members)
        if before is None:
            return
        if self._members - before:
            self._joined = now
        if before - self._members:
            self.note_departure(now)

    def note_departure(self, when: float) -> None:
        self._left = when if self._left is None else max(self._left, when)

    def seconds_since_departure(self, now: float) -> float | None:
        """Return the time since a member left, None if none is known to have left."""
        return None if self._left is None else now - self._left

    def note_faults(
        self, faults: Collection[K], now: float, *, unproven: Collection[K] = ()
    ) -> list[K]:
        """Note all faults of one sample; return those to report now.

        :param unproven: those of *faults* that a closed connection may have caused
        """
        for fault, record in list(self._records.items()):
            gap = GONE_SECONDS if record.reported else GAP_SECONDS
            if fault not in faults and now - record.last > gap:
                del self._records[fault]
        return [each for each in dict.fromkeys(faults) if self._note(each, now, unproven)]

    def _note(self, fault: K, now: float, unproven: Collection[K]) -> bool:
        record = self._records.get(fault)
        if record is None:
            near_join = now - self._joined <= JOIN_SECONDS
            record = self._records[fault] = _Record(now, near_join)
        record.last = now
        record.occurrences += 1
        if record.proven is None and fault not in unproven:
            record.proven = now
        if (
            record.reported
            or record.occurrences < LEAST_OCCURRENCES
            or not self._lasts(record, now)
        ):
            return False
        record.reported = True
        return True

    def _lasts(self, record: _Record, now: float) -> bool:
        if record.proven is None:
            return now - record.first >= UNPROVEN_SECONDS
        left = self._left
        growing = left is None or now - left >= QUIET_SECONDS
        needed = SETTLE_SECONDS if record.near_join and growing else QUIET_SECONDS
        calm_since = max(record.proven, self._joined, self._joined if left is None else left)
        return now - calm_since >= needed or now - record.proven >= LONGEST_SECONDS

    def is_settling(self, now: float) -> bool:
        """Whether a member joined so recently that a fault would be reported soon."""
        return now - self._joined <= 2 * SETTLE_SECONDS

    def has_pending(self) -> bool:
        """Whether a fault was seen but not reported yet."""
        return any(not record.reported for record in self._records.values())
