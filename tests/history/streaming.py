"""Rules of Spark streams: ranges that tasks read, checkpoints, and commits of the source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from rocketmq_aio.model.values import MessageQueue
from tests.history.events import RangeRead
from tests.history.history import History
from tests.history.rules import Finding, GroupQueue

Range = tuple[GroupQueue, int, int]


def i25_the_sink_has_the_range_of_the_log(history: History) -> Iterator[Finding]:
    """Checkpointed batches contain the log between their first and last offsets."""
    if not history.log:
        return
    log: dict[MessageQueue, dict[int, str]] = defaultdict(dict)
    for entry in history.log:
        log[entry.queue][entry.offset] = entry.identity
    for (group, queue), reads in _sinks(history).items():
        begin, end = min(r.begin for r in reads), max(r.end for r in reads)
        rows = Counter(row for read in reads for row in read.rows)
        stored = Counter(each for each in log[queue].items() if begin <= each[0] < end)
        if rows != stored:
            missing, more = sorted((stored - rows).elements()), sorted((rows - stored).elements())
            what = f"the sink of {group} lacks {missing} of {queue}, and has {more} too many"
            yield Finding(what, (*reads,))


def i26_two_reads_of_a_range_are_equal(history: History) -> Iterator[Finding]:
    """A range that is read again, as after a failed task, has the same rows."""
    first: dict[Range, RangeRead] = {}
    for read in history.reads:
        before = first.setdefault((GroupQueue(read.group, read.queue), read.begin, read.end), read)
        if before.rows != read.rows:
            what = f"{read.queue} from {read.begin} to {read.end} was read with different rows"
            yield Finding(what, (before, read))


def i27_the_source_commits_what_is_checkpointed(history: History) -> Iterator[Finding]:
    """A stream commits offsets up to the end of its last checkpointed batch, at most."""
    streams = {read.group for read in history.reads}
    at = {(each.group, each.batch): each.at for each in history.checkpoints}
    for commit in history.commits:
        if commit.group not in streams:
            continue
        ends = [
            read.end
            for read in history.reads
            if (read.group, read.queue) == (commit.group, commit.queue)
            and at.get((read.group, read.batch), commit.at + 1) <= commit.at
        ]
        if commit.offset > max(ends, default=history.starts.get(commit.queue, 0)):
            what = f"{commit.queue}@{commit.offset} was committed before its checkpoint"
            yield Finding(what, (commit,))


def _sinks(history: History) -> dict[GroupQueue, list[RangeRead]]:
    """Return what is in the sinks: of each range of a checkpointed batch its last read."""
    done = {(each.group, each.batch) for each in history.checkpoints}
    last: dict[tuple[GroupQueue, int, int], RangeRead] = {}
    for read in history.reads:
        if (read.group, read.batch) in done:
            last[GroupQueue(read.group, read.queue), read.batch, read.begin] = read
    sinks: dict[GroupQueue, list[RangeRead]] = defaultdict(list)
    for (key, *_), read in last.items():
        sinks[key].append(read)
    return sinks


STREAMING = {
    "I25": i25_the_sink_has_the_range_of_the_log,
    "I26": i26_two_reads_of_a_range_are_equal,
    "I27": i27_the_source_commits_what_is_checkpointed,
}
