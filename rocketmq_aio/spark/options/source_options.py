"""Options of the data source: the strings from Spark, validated and parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import SECRET_PARTS, settings
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import ExpressionType
from rocketmq_aio.spark.offsets import LATEST, MAX_OFFSET, Offsets, Queue, StreamOffset, nested
from rocketmq_aio.spark.options import values as values

StartingWord: TypeAlias = Literal["earliest", "latest", "group"]
EndingWord: TypeAlias = Literal["latest"]
UnmatchedTimestamp: TypeAlias = Literal["latest", "error"]
ReadFrom: TypeAlias = Literal["master", "suggested"]

SPARK_OWN: Final = ("checkpointlocation", "queryname")  # added to the options of sinks by Spark
HIDDEN: Final = "***"
KAFKA: Final = {  # replacements for options of Spark's Kafka source
    "kafka.bootstrap.servers": "; use nameServer",
    "kafka.group.id": "; use group",
    "groupidprefix": "; use group",
    "kafka.ssl.truststore.location": "; use tlsCaFile",
    "kafka.ssl.keystore.location": "; use tlsCertFile and tlsKeyFile",
    "kafka.security.protocol": "; use tls, and accessKey with secretKey",
    "kafka.sasl.jaas.config": "; use accessKey and secretKey",
    "kafkaconsumer.polltimeoutms": "; use pullTimeoutMs",
    "includeheaders": "; select the column properties",
}
# As tags such a filter matches nothing, and the read would be empty.  Stricter than a client, for
# which a tag may be ``a=b``: expressionType says what is meant.
SQL: Final = re.compile(r"[=<>']|\bis\s+(not\s+)?null\b|\bbetween\s|\bin\s*\(", re.IGNORECASE)
NO_MEANING: Final = ", which has no meaning here: leave it out"
LONGEST_RETRY_PAUSE: Final = 60.0
TABLE_PREFIX: Final = "option."
# Spark passes the OPTIONS of a table to no scan or write of a Python data source.
IN_SQL: Final = (
    "for a table, name the options in each statement: FROM name WITH (`nameServer`='host:port', "
    "`subscribe`='topic'), or use CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...)"
)


class Option(NamedTuple):
    """One option: its name, its kinds (B batch read, S streaming read, W write) and its parser."""

    name: str  # "": that of the field in camel case
    kinds: str
    parse: Callable[[str, str], Any]


def option(
    parse: Callable[[str, str], Any],
    default: object = None,
    *,
    kinds: str = "BS",
    name: str = "",
    repr: bool = True,  # noqa: A002 - that of `field`
) -> Any:  # noqa: ANN401 - the type of the field
    """Return the field of an option; see `Option`."""
    metadata = {"option": Option(name, kinds, parse)}
    if isinstance(default, dict):
        return field(default_factory=dict, repr=repr, metadata=metadata)
    return field(default=default, repr=repr, metadata=metadata)


_common = partial(option, kinds="BSW")
_secret = partial(_common, values.text, repr=False)
_write = partial(option, kinds="W")


@settings
class Connection:
    """Connection options; equal ones share a client in each process."""

    name_server: str = _common(values.name_servers, MISSING)
    group: str = _common(values.group, "rocketmq-spark")
    access_key: str | None = _secret()
    secret_key: str | None = _secret()
    security_token: str | None = _secret()
    tls: bool = _common(values.flag, False)
    tls_ca_file: str | None = _common(values.text)
    tls_cert_file: str | None = _common(values.text)
    tls_key_file: str | None = _common(values.text)
    namespace: str | None = _common(values.namespace)

    def __post_init__(self) -> None:
        check_fields(self)


@settings
class ReadOptions:
    """Options of a read; exactly one of *subscribe*, *subscribe_pattern* and *assign* is set.

    :ivar starting_offsets: ``earliest``, ``latest``, ``group``, or offsets where -2 is the
        earliest and -1 the latest; *ending_offsets* likewise
    :ivar starting_timestamp: milliseconds since 1970 by the broker's clock, like all timestamps
    :ivar max_trigger_delay: seconds
    :ivar later_starts: where queues start that *starting_offsets*, then a line of a checkpoint,
        does not name
    """

    connection: Connection
    subscribe: tuple[str, ...] = option(values.topics, ())
    subscribe_pattern: str | None = option(values.pattern)
    assign: tuple[Queue, ...] = option(values.queues, ())
    sub_expression: str = option(values.text, "*")
    expression_type: ExpressionType = option(values.choice(*get_args(ExpressionType)), "TAG")
    starting_offsets: StartingWord | Offsets = option(
        values.start(*get_args(StartingWord)), "earliest"
    )
    starting_timestamp: int | None = option(values.instant)
    starting_offsets_by_timestamp: Offsets = option(values.instants, {})
    starting_offsets_by_timestamp_strategy: UnmatchedTimestamp = option(
        values.choice(*get_args(UnmatchedTimestamp)), "latest"
    )
    ending_offsets: EndingWord | Offsets = option(
        values.offsets(*get_args(EndingWord)), "latest", kinds="B"
    )
    ending_timestamp: int | None = option(values.instant, kinds="B")
    ending_offsets_by_timestamp: Offsets = option(values.instants, {}, kinds="B")
    fail_on_data_loss: bool = option(values.flag, True)
    max_offsets_per_trigger: int | None = option(values.count(1, MAX_OFFSET), kinds="S")
    min_offsets_per_trigger: int | None = option(values.count(1, MAX_OFFSET), kinds="S")
    max_trigger_delay: float = option(values.duration, 900.0, kinds="S")
    min_partitions: int | None = option(values.count(1))
    max_records_per_partition: int | None = option(values.count(1))
    max_partitions: int | None = option(values.count(1))
    min_records_per_partition: int = option(values.count(1), 10_000)
    commit_offsets: bool = option(values.flag, False, kinds="S")
    pull_batch_size: int = option(values.count(1), 1024)
    pull_window: int = option(values.count(1, 1024), 32)
    pull_timeout_ms: int = option(values.count(1), 120_000)
    read_from: ReadFrom = option(values.choice(*get_args(ReadFrom)), "master")
    fetch_num_retries: int = option(values.count(0, 1000), 5, name="fetchOffset.numRetries")
    fetch_retry_interval_ms: int = option(values.count(1), 500, name="fetchOffset.retryIntervalMs")
    later_starts: StreamOffset | None = None

    def retry_pauses(self) -> Iterator[float]:
        """Yield the seconds before each retry of a query for offsets: doubled, up to a minute."""
        pause = self.fetch_retry_interval_ms / 1000
        for _ in range(self.fetch_num_retries):
            yield pause
            pause = max(pause, min(2 * pause, LONGEST_RETRY_PAUSE))


@settings
class WriteOptions:
    """Options of a write.

    :ivar check_tags: reject rows whose tag contains a bar, which no tag filter matches
    """

    connection: Connection
    topic: str | None = _write(values.topic)
    batch_bytes: int = _write(values.count(1), 1024 * 1024)
    batch_records: int = _write(values.count(1), 256)
    send_window: int = _write(values.count(1), 16)
    send_timeout_ms: int = _write(values.count(1), 3000)
    retries: int = _write(values.count(0), 3)
    check_tags: bool = _write(values.flag, True)


def _named(each: Field[Any]) -> Option:
    first, *rest = each.name.split("_")
    made: Option = each.metadata["option"]
    return made._replace(name=made.name or first + "".join(part.title() for part in rest))


OPTIONS: Final = {  # by field
    each.name: _named(each)
    for kind in (Connection, ReadOptions, WriteOptions)
    for each in fields(kind)
    if each.metadata
}
KIND_NAMES: Final = {"B": "a batch read", "S": "a streaming read", "W": "a write"}


def read_options(mapping: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return the options of a read; raise `ConfigError` if one is unknown or invalid."""
    found = _parsed(mapping, "S" if streaming else "B")
    connection = _connection(found)
    if streaming:
        found.setdefault("starting_offsets", "latest")
    if isinstance(line := found.get("starting_offsets"), StreamOffset):
        found |= {"starting_offsets": line.end, "later_starts": line}
    read = ReadOptions(connection=connection, **found)
    _check_topics(read)
    if "expression_type" not in found and SQL.search(read.sub_expression):
        reason = "it looks like an SQL condition: set expressionType to SQL92, or to TAG for tags"
        raise ConfigError("subExpression", read.sub_expression, reason)
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


def _parsed(mapping: Mapping[str, str], kind: str) -> dict[str, Any]:
    by_name = {option.name.lower(): (name, option) for name, option in OPTIONS.items()}
    if kind != "W":
        by_name["topic"] = by_name["subscribe"]  # an alias
    found: dict[str, Any] = {}
    for given, text in mapping.items():
        if given.lower() not in by_name:
            raise _unknown(given, text, kind)
        name, option = by_name[given.lower()]
        if kind not in option.kinds:
            allowed = " or ".join(KIND_NAMES[each] for each in option.kinds)
            raise ConfigError(option.name, text, f"an option of {allowed} only: leave it out")
        if name in found:
            raise ConfigError("topic", text, "the same as subscribe: give one of them")
        found[name] = option.parse(option.name, text)
    return found


def _unknown(given: str, text: str, kind: str) -> ConfigError:
    if given.lower() in KAFKA or given.lower().startswith("kafka"):
        advice = KAFKA.get(given.lower(), NO_MEANING)
        return ConfigError(given, HIDDEN, f"an option of Kafka{advice}")  # often a secret
    names = [each.name for each in OPTIONS.values() if kind in each.kinds]
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(given.lower(), by_lower, 1)
    known = [by_lower[close[0]]] if close else sorted(names)
    hint = f"did you mean {known[0]}?" if close else f"known are {', '.join(known)}"
    secret = any(part in name.lower() for part in SECRET_PARTS for name in (given, *close))
    return ConfigError(given, HIDDEN if secret else text, f"unknown option; {hint}")


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
    if sum(map(bool, (read.subscribe, read.subscribe_pattern, read.assign))) != 1:
        reason = "give one of subscribe, subscribePattern and assign"
        raise ConfigError("subscribe", ",".join(read.subscribe) or None, reason)
    values.check_expression(read.sub_expression, read.expression_type)


def _check_positions(read: ReadOptions, *, streaming: bool) -> None:
    start, end = read.starting_offsets, read.ending_offsets
    begin, until = read.starting_timestamp, read.ending_timestamp
    has_time = begin is not None or read.starting_offsets_by_timestamp
    if not streaming and start == "latest" and not has_time:
        reason = "a batch read would be empty: use earliest, group, offsets or a timestamp"
        raise ConfigError("startingOffsets", start, reason)
    if isinstance(end, dict) and any(number < LATEST for number in end.values()):
        reason = "-2 is no end: use -1 (latest) or an offset"
        raise ConfigError("endingOffsets", nested(end), reason)
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


def _check_limits(read: ReadOptions) -> None:
    for what in ("offsets_per_trigger", "partitions"):
        low, high = f"min_{what}", f"max_{what}"
        least, most = getattr(read, low), getattr(read, high)
        if least is not None and most is not None and least > most:
            raise ConfigError(OPTIONS[low].name, least, f"more than {OPTIONS[high].name} ({most})")
