"""Lag of streaming queries, computed from Spark's progress reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.streaming.listener import StreamingQueryListener

from rocketmq_aio.config.validation import check_function
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import VERSION, Offsets, Queue, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class QueryLag:
    """Lag of a query at the end of a trigger.

    :ivar queues: number of unread messages, by (topic, broker, queue id); the largest, if several
        sources of the query read a queue
    :ivar rows_per_second: processing rate of the last batch
    """

    name: str | None
    query_id: str
    batch_id: int
    timestamp: str
    queues: Mapping[Queue, int] = field(default_factory=dict)
    input_rows: int = 0
    rows_per_second: float = 0.0

    @property
    def total(self) -> int:
        """Unread messages in all queues."""
        return sum(self.queues.values())

    def by_topic(self) -> dict[str, int]:
        """Return the unread messages by topic."""
        topics = Counter[str]()
        for (topic, _, _), behind in sorted(self.queues.items()):
            topics[topic] += behind
        return dict(topics)

    def __str__(self) -> str:
        topics = ", ".join(f"{topic} {behind}" for topic, behind in self.by_topic().items())
        query = self.name or self.query_id
        speed = f"{self.input_rows} rows, {self.rows_per_second:.0f}/s"
        behind = f"{self.total} behind ({topics or 'no topic'})"
        return f"{query} batch {self.batch_id}: {behind}; {speed}"


def query_lag(progress: Mapping[str, Any]) -> QueryLag:
    """Return the lag from a progress report (``query.lastProgress``)."""
    queues: Offsets = {}
    sources = progress.get("sources") or ()
    for source in sources:
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is not None and latest is not None:
            for queue, at in latest.end.items():
                queues[queue] = max(0, at - end.end.get(queue, at), queues.get(queue, 0))
    return QueryLag(
        name=progress.get("name"),
        query_id=str(progress.get("id")),
        batch_id=int(progress.get("batchId", -1)),
        timestamp=str(progress.get("timestamp")),
        queues=queues,
        # Spark Connect has no sums.
        input_rows=sum(int(each.get("numInputRows") or 0) for each in sources),
        rows_per_second=sum(float(each.get("processedRowsPerSecond") or 0) for each in sources),
    )


def lag_report(queries: SparkSession | StreamingQuery | Iterable[StreamingQuery]) -> list[QueryLag]:
    """Return the lag of one query, several queries or all active queries of a session.

    Queries without a progress report are omitted.

    :raises ConfigError: *queries* is neither a session nor queries
    """
    try:
        reports = [query.lastProgress for query in _queries(queries)]
    except AttributeError as error:
        reason = "expected a session or streaming queries"
        raise ConfigError("queries", queries, reason) from error
    return [query_lag(report) for report in reports if report is not None]


class LagListener(StreamingQueryListener):
    """Reports the lag of each query after each trigger; ``spark.streams.addListener(...)``.

    :param on_lag: called with each `QueryLag`; the default prints it
    :raises ConfigError: it is not a function of one argument
    :ivar latest: the last lag, by query id
    """

    def __init__(self, on_lag: Callable[[QueryLag], object] = print) -> None:
        check_function("on_lag", on_lag, "lag", may_be_async=False)
        self.latest: dict[str, QueryLag] = {}
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report the lag if the query reads topics."""
        lag = query_lag(event.progress)
        if lag.queues:
            self.latest[lag.query_id] = lag
            self._on_lag(lag)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query."""
        self.latest.pop(str(event.id), None)


def _queries(
    given: SparkSession | StreamingQuery | Iterable[StreamingQuery],
) -> list[StreamingQuery]:
    # By attribute: Spark Connect has classes of its own.
    if isinstance(given, Iterable):
        return list(given)
    session: Any = getattr(given, "streams", None)
    return [cast("StreamingQuery", given)] if session is None else list(session.active)


def _offset(value: object) -> StreamOffset | None:
    """Return an offset of this source; None for other sources, such as a Kafka topic ``end``."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        is_own = isinstance(found, dict) and found.get("v") == VERSION and "end" in found
        return StreamOffset.from_json(found) if is_own else None
    except ValueError:  # no JSON, or a `ConfigError`
        return None
