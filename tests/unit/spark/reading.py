"""Ranges of a fake cluster read like a task reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark.sql.types import StructType

from rocketmq_aio.embedded.responses import Handler, Outcome, Response
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.pull import PullMessage, PullMessageResponse
from rocketmq_aio.spark.arrow.columns import SCHEMA
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions
from rocketmq_aio.spark.read.batch_reader import read
from tests.fakes.cluster import FakeCluster

TOPIC: Final = "orders"
PLACES: Final = StructType([SCHEMA["queueId"], SCHEMA["queueOffset"], SCHEMA["body"]])
PULL: Final = RequestCode.LITE_PULL_MESSAGE


class Reading:
    """A fake cluster and reads of its ranges."""

    def __init__(self, portal: BlockingPortal, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.broker = cluster.broker
        self._portal = portal
        self.connection = Connection(name_server=cluster.namesrv)
        self.code: int = PULL if self.broker.version.is_5 else RequestCode.PULL_MESSAGE

    def put(self, *bodies: str, queue_id: int = 0, tag: str = "") -> None:
        properties = f"TAGS\x01{tag}\x02" if tag else ""
        for body in bodies:
            args = (TOPIC, body.encode())
            self.broker.put(*args, queue_id=queue_id, properties=properties)

    def put_numbers(self, count: int, queue_id: int = 0) -> None:
        self.put(*map(str, range(count)), queue_id=queue_id)

    def on(self, what: Handler | Outcome, times: int | None = 1) -> None:
        """Script the responses to the next pulls."""
        self.broker.faults.handle(self.code, what, times=times)

    def stop_name_server(self) -> None:
        self._portal.call(self.cluster.name_server.stop)

    def pulls(self) -> list[PullMessage]:
        return [read_header(each, PullMessage) for each in self.broker.requests_of(self.code)]

    def options(self, **changes: Any) -> ReadOptions:  # noqa: ANN401 - those of ReadOptions
        quick = {"pull_timeout_ms": 20_000, "fetch_retry_interval_ms": 10}
        changes = {"subscribe": (TOPIC,), **quick, **changes}
        return ReadOptions(connection=self.connection, **changes)

    def batches(self, ranges: Sequence[Range], **options: Any) -> list[Any]:  # noqa: ANN401
        with closing(read(ranges, self.options(**options), PLACES)) as found:
            return list(found)

    def read(self, *ranges: Range, **options: Any) -> list[tuple[int, int, bytes]]:  # noqa: ANN401
        """Return queue id, offset and body of each row."""
        rows = [row for batch in self.batches(ranges, **options) for row in batch.to_pylist()]
        return [(row["queueId"], row["queueOffset"], row["body"]) for row in rows]

    def offsets(self, start: int, end: int, **options: Any) -> list[int]:  # noqa: ANN401
        return [offset for _, offset, _ in self.read(within(start, end), **options)]


def script_brokers(cluster: FakeCluster, *names: str) -> None:
    """Script the registered brokers of the name server."""
    table = {name: {"brokerName": name, "brokerAddrs": {"0": "x:1"}} for name in names}
    body = msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": {}})
    cluster.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, Response(body=body), times=None)


def within(start: int, end: int, queue_id: int = 0) -> Range:
    return Range(TOPIC, "broker-a", queue_id, start, end)


@contextmanager
def reading(version: str = "5.5.0", queues: int = 2, brokers: int = 1) -> Iterator[Reading]:
    """A fake cluster, with one broker by default."""
    with start_blocking_portal() as portal:
        cluster = FakeCluster(brokers, version=version, topics={TOPIC: queues})
        with portal.wrap_async_context_manager(cluster):
            yield Reading(portal, cluster)


def pull_response(
    code: int,
    next_offset: int,
    *,
    least: int = 0,
    most: int = 100,
    body: bytes = b"",
    remark: str = "",
    delta: int | None = None,
) -> Response:
    fields = PullMessageResponse(
        suggest_which_broker_id=0,
        next_begin_offset=next_offset,
        min_offset=least,
        max_offset=most,
        offset_delta=delta,
    )
    return Response(code, to_ext_fields(fields), body, remark)


def pull_header(command: Command) -> PullMessage:
    return read_header(command, PullMessage)
