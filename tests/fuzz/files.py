"""Targets: files, checkpoints, options, filters and trace records."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from rocketmq_aio.embedded.broker.filters import FilterError, compile_sql
from rocketmq_aio.embedded.broker.store import NewMessage
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.snapshot import SnapshotError, load_snapshot, save_snapshot
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import StreamOffset
from rocketmq_aio.spark.options import values
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Signature, Target, any_json, kind_of, outcome

# --- SQL92 ----------------------------------------------------------------------------------------

SQL_WORDS: Final = (
    *("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS"),
    *("STARTSWITH", "ENDSWITH", "=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-"),
    *("a", "b", "price", "'x'", "''", "'it''s'", "1", "0", "2.5", "1e400", "9" * 20, "9" * 5000),
    *("/* c */", "/*", "'", "1L", "$x", "_y", "é", ";"),
)
SQL_SEEDS: Final = (
    "a = 1 AND b <> 'x' OR NOT (price BETWEEN 1 AND 2.5)",
    "a IN ('x', 'y') AND b IS NOT NULL",
    "a NOT CONTAINS 'x' AND b STARTSWITH 'y' AND a ENDSWITH 'z'",
    "-price >= +3 OR TRUE AND a IS NULL",
    "(((a = TRUE)))",
)
PROPERTIES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"a": "1", "b": "x", "price": "2"},
    {"a": "x", "b": "", "price": "NaN"},
)


def sql_seeds(random: Random) -> list[bytes]:
    del random
    return [each.encode() for each in SQL_SEEDS]


def mutated_sql(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
    random = mutator.random
    if random.random() < 0.2:
        return mutator.change(data, others)
    words = data.decode("utf-8", "replace").split(" ")
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randint(0, len(words))
        choice = random.random()
        if choice < 0.5:
            words[at : at + random.randrange(2)] = [random.choice(SQL_WORDS)]
        elif choice < 0.7:
            del words[at : at + random.choice((1, 1, 3))]
        elif choice < 0.95:
            words[at:at] = words[max(0, at - random.choice((2, 3, 4))) : at]
        else:
            words = words[:at] + words[max(0, at - 4) : at] * random.choice((20, 200, 2000))
    return " ".join(words)[:20_000].encode()


def check_sql(data: bytes) -> Signature:
    text = data.decode("utf-8", "replace")
    kinds = []
    for is_5 in (True, False):
        condition = outcome(compile_sql, text, error=FilterError, is_5=is_5)
        if isinstance(condition, Exception):
            assert type(condition) is FilterError
            kinds.append(kind_of(condition))
            continue
        for properties in PROPERTIES:
            matches = condition(properties)
            assert matches is True or matches is False
            kinds.append(matches)
    return tuple(kinds)


# --- Spark ----------------------------------------------------------------------------------------

QUEUES: Final = {("orders", "broker-a", 0): 5, ("orders", "broker-b", 1): 7}


def spark_seeds(random: Random) -> list[bytes]:
    del random
    made = (
        StreamOffset(at_start=True),
        StreamOffset(end=QUEUES),
        StreamOffset(end=QUEUES, starts=QUEUES, stored=QUEUES),
    )
    for each in made:
        assert StreamOffset.from_json(each.to_json()) == each
    return [json.dumps(each.to_json()).encode() for each in made]


def check_stream_offset(data: bytes) -> Signature:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(value, dict):
        return "no object"
    read = outcome(StreamOffset.from_json, value, error=ConfigError)
    if isinstance(read, StreamOffset):
        assert StreamOffset.from_json(read.to_json()) == read
    return kind_of(read)


def option_seeds(random: Random) -> list[bytes]:
    del random
    return [
        b'{"orders":{"broker-a":{"0":120,"1":-2}}}',
        b'{"orders":{"broker-a":[0,1]}}',
        b'{"v":1,"end":{"orders":{"b":{"0":1}}}}',
        b"1700000000000",
        b"2026-01-31T08:00:00Z",
        b"earliest",
    ]


OPTIONS: Final = (
    values.offsets("earliest", "latest"),
    values.queues,
    values.instant,
    values.instants,
)


def check_option(data: bytes) -> Signature:
    text = data.decode("utf-8", "replace")
    return tuple(kind_of(outcome(each, "option", text, error=ConfigError)) for each in OPTIONS)


# --- snapshots ------------------------------------------------------------------------------------


def snapshot_seeds(random: Random) -> list[bytes]:
    del random
    cluster = EmbeddedCluster(topics={"orders": 2})
    broker = cluster.brokers[0]
    cluster.create_group("billing")
    for number in range(3):
        message = NewMessage(topic="orders", queue_id=number % 2, body=b"x", properties={"a": "b"})
        broker.state.store.append(message)
    broker.state.committed["billing", "orders", 0] = 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data"
        save_snapshot(cluster.brokers, file)
        return [file.read_bytes()]


def mutated_snapshot(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
    if mutator.random.random() < 0.3:
        return mutator.change(data, others)
    try:
        tree: Any = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return mutator.change(data, others)
    for _ in range(mutator.random.choice((1, 1, 2))):
        tree = mutator.change_tree(tree)
    try:
        return msgspec.msgpack.encode(tree)
    except OverflowError:
        return data


class _File(type(Path())):  # type: ignore[misc]
    """A file whose content is given."""

    content = b""

    def read_bytes(self) -> bytes:
        return self.content


def check_snapshot(data: bytes) -> Signature:
    cluster = EmbeddedCluster()
    file = _File("data")
    file.content = data
    found = outcome(load_snapshot, cluster.brokers, file, error=SnapshotError)
    if isinstance(found, Exception):
        return kind_of(found)
    broker = cluster.brokers[0]
    for each in broker.state.store.log:
        assert each.tag is None or each.tag
        each.to_new(each.topic, each.queue_id)
    for topic in broker.state.store.topics.values():
        for queue in topic.queues:
            assert 0 <= queue.min_offset <= queue.max_offset
            assert [m.offset for m in queue.messages] == list(
                range(queue.min_offset, queue.max_offset)
            )
    return len(broker.state.store.log), len(broker.state.store.topics)


FILES: Final = (
    Target(name="sql", seeds=sql_seeds, mutate=mutated_sql, check=check_sql, weight=3, grows=2000),
    Target(name="stream-offsets", seeds=spark_seeds, mutate=any_json, check=check_stream_offset),
    Target(name="options", seeds=option_seeds, mutate=any_json, check=check_option, weight=5),
    Target(
        name="snapshots",
        seeds=snapshot_seeds,
        mutate=mutated_snapshot,
        check=check_snapshot,
        weight=1,
    ),
)
