"""Options of the data source: the strings from Spark, validated and parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from rocketmq_aio.config.validation import SECRET_PARTS
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import ExpressionType
from rocketmq_aio.spark.offsets import LATEST, Offsets, Queue
from rocketmq_aio.spark.options import values as values

StartingWord: TypeAlias = Literal["earliest", "latest", "group"]
EndingWord: TypeAlias = Literal["latest"]
UnmatchedTimestamp: TypeAlias = Literal["latest", "error"]
ReadFrom: TypeAlias = Literal["master", "suggested"]

MIB: Final = 1024 * 1024
SPARK_OWN: Final = frozenset(
    {"checkpointlocation", "queryname"}
)  # added to the options of sinks by Spark
HIDDEN: Final = "***"
KAFKA: Final = {  # replacements for options of Spark's Kafka source
    "kafka.bootstrap.servers": "use nameServer",
    "kafka.group.id": "use group",
    "groupidprefix": "use group",
    "kafka.ssl.truststore.location": "use tlsCaFile",
    "kafka.ssl.keystore.location": "use tlsCertFile and tlsKeyFile",
    "kafka.security.protocol": "use tls, and accessKey with secretKey",
    "kafka.sasl.jaas.config": "use accessKey and secretKey",
    "kafkaconsumer.polltimeoutms": "use pullTimeoutMs",
    "includeheaders": "select the column properties",
}
TABLE_PREFIX: Final = "option."
# Spark passes the OPTIONS of a table to no scan or write of a Python data source.
IN_SQL: Final = (
    "for a table, name the options in each statement: FROM name WITH (`nameServer`='host:port', "
    "`subscribe`='topic'), or use CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...)"
)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Connection options; equal ones share a client in each process."""

    name_server: str
    group: str = "rocketmq-spark"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read; exactly one of *subscribe*, *subscribe_pattern* and *assign* is set.

    :ivar starting_offsets: ``earliest``, ``latest``, ``group``, or offsets where -2 is the
        earliest and -1 the latest; *ending_offsets* likewise
    :ivar starting_timestamp: milliseconds since 1970 by the broker's clock, like all timestamps
    :ivar max_trigger_delay: seconds
    """

    connection: Connection
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: tuple[Queue, ...] = ()
    sub_expression: str = "*"
    expression_type: ExpressionType = "TAG"
    starting_offsets: StartingWord | Offsets = "earliest"
    starting_timestamp: int | None = None
    starting_offsets_by_timestamp: Offsets = field(default_factory=dict)
    starting_offsets_by_timestamp_strategy: UnmatchedTimestamp = "latest"
    ending_offsets: EndingWord | Offsets = "latest"
    ending_timestamp: int | None = None
    ending_offsets_by_timestamp: Offsets = field(default_factory=dict)
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_partitions: int | None = None
    min_records_per_partition: int = 10_000
    commit_offsets: bool = False
    pull_batch_size: int = 1024
    pull_window: int = 32
    pull_timeout_ms: int = 120_000
    read_from: ReadFrom = "master"
    fetch_num_retries: int = 5
    fetch_retry_interval_ms: int = 500


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write.

    :ivar check_tags: reject rows whose tag contains a bar, which no tag filter matches
    """

    connection: Connection
    topic: str | None = None
    batch_bytes: int = MIB
    batch_records: int = 256
    send_window: int = 16
    send_timeout_ms: int = 3000
    retries: int = 3
    check_tags: bool = True


class Option(NamedTuple):
    """One option: its name, its kinds (B batch read, S streaming read, W write) and its parser."""

    name: str
    kinds: str
    parse: Callable[[str, str], Any]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _options(kinds: str, **parsers: Callable[[str, str], Any]) -> dict[str, Option]:
    return {name: Option(_camel(name), kinds, parse) for name, parse in parsers.items()}


OPTIONS: Final[dict[str, Option]] = {
    **_options(
        "BSW",
        name_server=values.name_servers,
        group=values.group,
        access_key=values.text,
        secret_key=values.text,
        security_token=values.text,
        tls=values.flag,
        tls_ca_file=values.text,
        tls_cert_file=values.text,
        tls_key_file=values.text,
        namespace=values.namespace,
    ),
    **_options(
        "BS",
        subscribe=values.topics,
        subscribe_pattern=values.pattern,
        assign=values.queues,
        sub_expression=values.text,
        expression_type=values.choice(*get_args(ExpressionType)),
        starting_offsets=values.offsets(*get_args(StartingWord)),
        starting_timestamp=values.instant,
        starting_offsets_by_timestamp=values.instants,
        starting_offsets_by_timestamp_strategy=values.choice(*get_args(UnmatchedTimestamp)),
        fail_on_data_loss=values.flag,
        min_partitions=values.count(1),
        max_records_per_partition=values.count(1),
        max_partitions=values.count(1),
        min_records_per_partition=values.count(1),
        pull_batch_size=values.count(1),
        pull_window=values.count(1, 1024),
        pull_timeout_ms=values.count(1),
        read_from=values.choice(*get_args(ReadFrom)),
    ),
    "fetch_num_retries": Option("fetchOffset.numRetries", "BS", values.count(0)),
    "fetch_retry_interval_ms": Option("fetchOffset.retryIntervalMs", "BS", values.count(1)),
    **_options(
        "B",
        ending_offsets=values.offsets(*get_args(EndingWord)),
        ending_timestamp=values.instant,
        ending_offsets_by_timestamp=values.instants,
    ),
    **_options(
        "S",
        max_offsets_per_trigger=values.count(1),
        min_offsets_per_trigger=values.count(1),
        max_trigger_delay=values.duration,
        commit_offsets=values.flag,
    ),
    **_options(
        "W",
        topic=values.topic,
        batch_bytes=values.count(1),
        batch_records=values.count(1),
        send_window=values.count(1),
        send_timeout_ms=values.count(1),
        retries=values.count(0),
        check_tags=values.flag,
    ),
}
KIND_NAMES: Final = {"B": "a batch read", "S": "a streaming read", "W": "a write"}


def read_options(mapping: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return the options of a read; raise `ConfigError` if one is unknown or invalid."""
    found = _parsed(_with_alias(mapping), "S" if streaming else "B")
    connection = _connection(found)
    if streaming:
        found.setdefault("starting_offsets", "latest")
    read = ReadOptions(connection=connection, **found)
    _check_topics(read)
    _check_positions(read, streaming=streaming)
    _check_limits(read)
    return read


def check_table_options(mapping: Mapping[str, str]) -> None:
    """Raise `ConfigError` for ``CREATE TABLE ... USING rocketmq OPTIONS (...)``.

    No later statement gets them.  For a new table Spark passes each option twice, once prefixed.
    """
    if any(name.lower().startswith(TABLE_PREFIX) for name in mapping):
        reason = "CREATE TABLE keeps them, but Spark passes them to no later statement: leave them"
        raise ConfigError("OPTIONS", HIDDEN, f"{reason} out; {IN_SQL}")


def write_options(mapping: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return the options of a write, without those of Spark; raise `ConfigError` if invalid."""
    mine = {name: text for name, text in mapping.items() if name.lower() not in SPARK_OWN}
    found = _parsed(mine if streaming else mapping, "W")
    return WriteOptions(connection=_connection(found), **found)


def _with_alias(mapping: Mapping[str, str]) -> dict[str, str]:
    """Replace ``topic`` of a read by ``subscribe``."""
    given = {name.lower(): text for name, text in mapping.items()}
    if "topic" in given and "subscribe" in given:
        raise ConfigError("topic", given["topic"], "the same as subscribe: give one of them")
    return {("subscribe" if n.lower() == "topic" else n): text for n, text in mapping.items()}


def _parsed(mapping: Mapping[str, str], kind: str) -> dict[str, Any]:
    by_name = {option.name.lower(): (name, option) for name, option in OPTIONS.items()}
    found = {}
    for given, text in mapping.items():
        if given.lower() not in by_name:
            raise _unknown(given, text, kind)
        name, option = by_name[given.lower()]
        if kind not in option.kinds:
            allowed = " or ".join(KIND_NAMES[each] for each in option.kinds)
            raise ConfigError(option.name, text, f"an option of {allowed} only: leave it out")
        found[name] = option.parse(option.name, text)
    return found


def _unknown(given: str, text: str, kind: str) -> ConfigError:
    if (advice := _kafka_advice(given)) is not None:
        return ConfigError(given, HIDDEN, f"an option of Kafka{advice}")  # often a secret
    names = [each.name for each in OPTIONS.values() if kind in each.kinds]
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(given.lower(), by_lower, 1)
    known = [by_lower[close[0]]] if close else sorted(names)
    hint = f"did you mean {known[0]}?" if close else f"known are {', '.join(known)}"
    secret = any(part in name.lower() for part in SECRET_PARTS for name in (given, *close))
    return ConfigError(given, HIDDEN if secret else text, f"unknown option; {hint}")


def _kafka_advice(given: str) -> str | None:
    """Return the advice for an option of Spark's Kafka source, or None."""
    advice = KAFKA.get(given.lower())
    if advice is not None:
        return f"; {advice}"
    return (
        ", which has no meaning here: leave it out" if given.lower().startswith("kafka") else None
    )


def _connection(found: dict[str, Any]) -> Connection:
    """Remove the connection options from *found* and return them."""
    mine = {f.name: found.pop(f.name) for f in fields(Connection) if f.name in found}
    if "name_server" not in mine:
        reason = "not given: set it to host:port;host:port"
        raise ConfigError("nameServer", None, reason if mine or found else f"{reason}; {IN_SQL}")
    _check_together(mine, "access_key", "secret_key")
    _check_together(mine, "tls_cert_file", "tls_key_file")
    if "security_token" in mine and "access_key" not in mine:
        raise ConfigError("securityToken", HIDDEN, "needs accessKey and secretKey")
    if mine.keys() & {"tls_ca_file", "tls_cert_file"} and not mine.setdefault("tls", True):
        raise ConfigError("tls", False, "files are given for it: leave them out, or set it to true")
    return Connection(**mine)


def _check_together(given: Mapping[str, Any], *names: str) -> None:
    missing = [OPTIONS[name].name for name in names if name not in given]
    if 0 < len(missing) < len(names):
        both = " and ".join(OPTIONS[name].name for name in names)
        raise ConfigError(missing[0], None, f"not given: set both {both}")


def _check_topics(read: ReadOptions) -> None:
    given = [read.subscribe, read.subscribe_pattern, read.assign]
    if sum(map(bool, given)) != 1:
        reason = "give one of subscribe, subscribePattern and assign"
        raise ConfigError("subscribe", _shown(read.subscribe), reason)
    values.check_expression(read.sub_expression, read.expression_type)


def _check_positions(read: ReadOptions, *, streaming: bool) -> None:
    start, end = read.starting_offsets, read.ending_offsets
    if not streaming and start == "latest":
        reason = "a batch read would be empty: use earliest, group, offsets or a timestamp"
        raise ConfigError("startingOffsets", start, reason)
    if any(number < LATEST for number in _numbers(end)):
        raise ConfigError("endingOffsets", end, "-2 is no end: use -1 (latest) or an offset")
    begin, until = read.starting_timestamp, read.ending_timestamp
    if begin is not None and until is not None and begin > until:
        raise ConfigError("endingTimestamp", until, f"before startingTimestamp ({begin})")
    if begin is None and until is None:
        first, last = read.starting_offsets_by_timestamp, read.ending_offsets_by_timestamp
        _check_order("OffsetsByTimestamp", first, last)
        if isinstance(start, dict) and isinstance(end, dict):
            by_time = first.keys() | last.keys()  # overrides the offsets
            counts = {queue: at for queue, at in start.items() if queue not in by_time}
            _check_order("Offsets", counts, end)


def _check_order(kind: str, start: Offsets, end: Offsets) -> None:
    """Reject queues that end before they start; -1 and -2 are resolved later."""
    for queue, at in sorted(start.items()):
        if 0 <= (until := end.get(queue, LATEST)) < at:
            name = "/".join(map(str, queue))
            reason = f"above ending{kind} ({until}) of {name}: lower it, or leave the queue out"
            raise ConfigError(f"starting{kind}", at, reason)


def _numbers(offsets: str | Offsets) -> Iterable[int]:
    return offsets.values() if isinstance(offsets, dict) else ()


def _check_limits(read: ReadOptions) -> None:
    pairs = (
        ("min_offsets_per_trigger", "max_offsets_per_trigger"),
        ("min_partitions", "max_partitions"),
    )
    for low, high in pairs:
        least, most = getattr(read, low), getattr(read, high)
        if least is not None and most is not None and least > most:
            raise ConfigError(OPTIONS[low].name, least, f"more than {OPTIONS[high].name} ({most})")


def _shown(topics: tuple[str, ...]) -> str | None:
    return ",".join(topics) or None
