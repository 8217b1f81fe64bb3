"""Snapshot of a cluster's data in a file: topics, messages, offsets and groups."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.pop import Hidden
from rocketmq_aio.embedded.broker.store import StoredMessage, Topic
from rocketmq_aio.errors import CodecError, shown
from rocketmq_aio.protocol.record import stored_message
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from rocketmq_aio.protocol.requests.operations import TopicMapping

FORMAT: Final = "rocketmq_aio embedded 1"


class SnapshotError(Exception):
    """The file cannot be read or written, or is not a snapshot."""


class BrokerData(msgspec.Struct):
    """All that a broker keeps; messages in the order in which they were stored.

    Delayed, timed and half messages wait: time in ms, log offset; popped ones have the ends of
    their invisible times.  Light message queues have their first offset and log offsets.
    """

    name: str
    topics: dict[str, Topic]
    messages: list[StoredMessage]
    log_end: int
    groups: dict[str, dict[str, Any]]
    committed: list[tuple[str, str, int, int]]
    settings: dict[str, str]
    delayed: list[tuple[int, int]]
    timed: list[tuple[int, int]]
    half: list[tuple[int, int]]
    popped: list[Hidden] = []
    mappings: dict[str, TopicMapping] = {}
    request_modes: list[tuple[str, str, MessageRequestMode]] = []
    recalled: list[tuple[str, str]] = []
    light_queues: dict[str, tuple[int, list[int]]] = {}


class Snapshot(msgspec.Struct):
    """The contents of a file."""

    format: str
    brokers: list[BrokerData]


# The messages of a queue are in the log.
_encoder: Final = msgspec.msgpack.Encoder(enc_hook=lambda queue: queue.min_offset)
_decoder: Final = msgspec.msgpack.Decoder(
    Snapshot, dec_hook=lambda kind, min_offset: kind(msgspec.convert(min_offset, int))
)


def load_snapshot(brokers: Sequence[EmbeddedBroker], file: Path) -> bool:
    """Restore *brokers*, which do not run yet, by name; return False if there is no file.

    :raises SnapshotError: the file cannot be read, is damaged, or has the data of another number
        of brokers; nothing is restored
    """
    if (found := _read(file)) is None:
        return False
    by_name = {broker.name: broker for broker in brokers}
    names = [data.name for data in found.brokers]
    if sorted(names) != sorted(by_name):
        raise SnapshotError(f"{file} has the data of {len(names)} brokers: start as many")
    for data in found.brokers:
        if (fault := _fault(data)) is not None:
            raise SnapshotError(f"{file} is damaged: {shown(fault)}")
    for data in found.brokers:
        _restore(by_name[data.name], data)
    return True


def _read(file: Path) -> Snapshot | None:
    try:
        found = _decoder.decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{file} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise SnapshotError(f"{file} is not a snapshot: {error}") from error
    if found.format != FORMAT:
        raise SnapshotError(f"{file} is not a snapshot of this version: {shown(found.format)}")
    return found


def save_snapshot(brokers: Sequence[EmbeddedBroker], file: Path) -> None:
    """Save the data of *brokers*; the file is replaced at once, or stays as it was.

    :raises SnapshotError: the file cannot be written
    """
    encoded = _encoder.encode(Snapshot(FORMAT, [_data(broker) for broker in brokers]))
    with _part_of(file) as part:
        with part.open("wb") as output:
            output.write(encoded)
            output.flush()
            os.fsync(output.fileno())
        part.replace(file)


def check_writable(file: Path) -> None:
    """Check that a snapshot can be saved, as far as that is known before.

    Temporary files of processes that were killed while they saved are deleted.

    :raises SnapshotError: the folder does not exist, or is not writable
    """
    with _part_of(file) as part:
        part.touch()
    for left in file.parent.glob(f"{glob.escape(file.name)}.*.part"):
        number = left.name.removeprefix(f"{file.name}.").removesuffix(".part")
        if number.isdecimal() and not _is_running(int(number)):
            with suppress(OSError):  # of another user; on Windows also if it is open
                left.unlink()


def _is_running(process: int) -> bool:
    """Whether a process runs, as far as that can be asked: on Windows it cannot."""
    if sys.platform == "win32":
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


@contextmanager
def _part_of(file: Path) -> Iterator[Path]:
    """Return the path of a temporary file in the folder of *file*, which is deleted at the end."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotError(f"{file} cannot be written: {error.strerror}") from error


def _data(broker: EmbeddedBroker) -> BrokerData:
    state, store = broker.state, broker.state.store
    return BrokerData(
        name=broker.name,
        topics=store.topics,
        messages=store.log,
        log_end=store.log_end,
        groups=state.groups,
        committed=[(*key, offset) for key, offset in state.committed.items()],
        settings=state.settings,
        delayed=broker.delays.waiting.items(),
        timed=broker.timers.waiting.items(),
        half=broker.transactions.checks.items(),
        popped=list(broker.pops.invisible.values()),
        mappings=state.mappings,
        request_modes=[(*key, mode) for key, mode in state.request_modes.items()],
        recalled=list(broker.timers.recalled),
        light_queues={
            name: (queue.min_offset, [stored.log_offset for stored in queue.messages])
            for name, queue in store.light_queues.items()
        },
    )


def _fault(data: BrokerData) -> str | None:
    """Return what is wrong with *data*, None if it can be restored."""
    for name, topic in data.topics.items():
        most = len(topic.queues)
        if not (0 <= topic.read_queues <= most and 0 <= topic.write_queues <= most):
            return f"topic {name!r} has {most} queues"
        if any(queue.min_offset < 0 for queue in topic.queues):
            return f"a queue of topic {name!r} begins before 0"
    if any(begin < 0 for begin, _ in data.light_queues.values()):
        return "a light message queue begins before 0"
    topics = data.topics.items()
    ends = {name: [queue.min_offset for queue in topic.queues] for name, topic in topics}
    log_end = 0
    for stored in data.messages:
        queues = ends.get(stored.topic, [])
        if not 0 <= stored.queue_id < len(queues) or stored.offset != queues[stored.queue_id]:
            return f"there is no offset {stored.offset} in {stored.topic!r}/{stored.queue_id}"
        if stored.log_offset < log_end or not _is_record(stored):
            return f"there is no message at {stored.log_offset} of the log"
        queues[stored.queue_id] += 1
        log_end = stored.log_offset + len(stored.record)
    return None if log_end <= data.log_end else f"the log ends at {data.log_end}"


def _is_record(stored: StoredMessage) -> bool:
    try:
        message = stored_message(stored.record, "")
    except CodecError:
        return False
    queue = message.queue
    return (
        message.store_size == len(stored.record)
        and (queue.topic, queue.queue_id) == (stored.topic, stored.queue_id)
        and (message.queue_offset, message.commit_log_offset) == (stored.offset, stored.log_offset)
    )


def _restore(broker: EmbeddedBroker, data: BrokerData) -> None:
    state, store = broker.state, broker.state.store
    store.topics.update(data.topics)
    store.restore(data.messages, data.log_end)
    for light, (begin, log_offsets) in data.light_queues.items():
        store.restore_light_queue(light, begin, log_offsets)
    for name, settings in data.groups.items():
        group = state.create_group(name)  # the file may be of a broker of another version
        group.update({key: value for key, value in settings.items() if key in group})
    state.committed.update({(group, topic, at): to for group, topic, at, to in data.committed})
    state.update_settings(data.settings)
    state.mappings.update(data.mappings)
    state.request_modes.update({(topic, group): mode for topic, group, mode in data.request_modes})
    for due_ms, log_offset in data.delayed:
        broker.delays.waiting.add(due_ms, log_offset)
    for due_ms, log_offset in data.timed:
        broker.timers.waiting.add(due_ms, log_offset)
    broker.timers.recalled.update(dict.fromkeys(data.recalled))
    broker.transactions.restore(data.half)
    broker.pops.restore(data.popped)
