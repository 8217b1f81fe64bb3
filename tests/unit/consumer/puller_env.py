"""A puller with a fake broker in memory, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import ConsumerConfig, LitePullConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.hooks import FilterHooks
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.lite_pull.ready_queues import ReadyQueues
from rocketmq_aio.consumer.offsets.start_position import StartPositions
from rocketmq_aio.consumer.pull_loop.flow_control import Cache, CacheFlowControl
from rocketmq_aio.consumer.pull_loop.puller import Puller
from rocketmq_aio.consumer.pull_loop.queue_state import Start
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import Fault
from rocketmq_aio.embedded.responses import Response, resolve
from rocketmq_aio.errors import ConnectionLostError, RocketMQError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import TAGS, encode_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID, V5_0_0, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import RequestHeader, read_header, to_ext_fields
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.protocol.subscription import subscription
from tests.fakes.broker import FakeBroker
from tests.fakes.frame_rules import read_frame
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

ADDRESS: Final = "127.0.0.1:10911"
PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class FakeInstance:
    """A fake instance; requests go directly to the handlers of the fake broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self.remoting = self.routes = self.heartbeats = self.broker = self
        self.config = ClientConfig()
        self.takes_prepared = True
        self.decode = decode_messages
        self.broker_versions = {ADDRESS: V5_0_0}
        self.addresses: dict[int, str] = {MASTER_ID: ADDRESS}
        self.connected = True
        self.down: set[str] = set()  # addresses without a connection
        self.beats = 0
        self.queries = 0  # of the earliest store time
        self.query_error: RocketMQError | None = None
        self.offset_error: RocketMQError | None = None  # of queries of offsets
        self.invalidated: list[str] = []
        self.pulls: list[PullMessage] = []
        self.addressed: list[str] = []
        self.codes: list[int] = []
        self.at: list[float] = []
        self.timeouts: set[float] = set()
        self._broker = broker

    def replica_of(self, queue: MessageQueue, broker_id: int) -> tuple[str, int] | None:
        for each in (broker_id, MASTER_ID, *self.addresses):
            if each in self.addresses:
                return self.addresses[each], each
        return None

    def replicas_of(self, queue: MessageQueue) -> dict[int, str]:
        assert queue.broker_name == "broker-a"
        return self.addresses

    def named_master(self, queue: MessageQueue) -> str | None:
        return self.addresses.get(MASTER_ID)

    async def min_offset(self, queue: MessageQueue) -> int:
        self._may_query()
        return self._broker.topics[queue.topic].queues[queue.queue_id].min_offset

    async def max_offset(self, queue: MessageQueue) -> int:
        self._may_query()
        return self._broker.topics[queue.topic].queues[queue.queue_id].max_offset

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        if self.query_error is not None:
            raise self.query_error
        self.queries += 1
        messages = self._broker.topics[queue.topic].queues[queue.queue_id].messages
        return messages[0].store_ms if messages else -1

    async def offset_for_time(self, queue: MessageQueue, millis: int) -> int:
        self._may_query()
        return self._broker.topics[queue.topic].queues[queue.queue_id].search(millis)

    def _may_query(self) -> None:
        if self.offset_error is not None:
            raise self.offset_error

    def is_connected(self, address: str) -> bool:
        return self.connected and address not in self.down

    def current_connection(self, address: str) -> int:
        return int(self.is_connected(address))

    def invalidate(self, topic: str) -> None:
        self.invalidated.append(topic)

    def broker_of(self, queue: MessageQueue) -> str:
        return queue.broker_name

    async def send_all(self, group: str) -> None:
        assert group == "billing"
        self.beats += 1

    async def request(
        self, address: str, header: RequestHeader, *, timeout: float, on_late: object = None
    ) -> Command:
        self.addressed.append(address)
        return await self._ask(Command(header.code, 0, ext=to_ext_fields(header)), timeout)

    async def exchange(
        self,
        address: str,
        code: int,
        frame: Callable[[int], tuple[bytes, bytes]],
        timeout: float,
        on_late: object = None,
    ) -> Command:
        command = read_frame(b"".join(frame(7)))
        assert command is not None
        assert (command.code, command.opaque) == (code, 7)
        self.addressed.append(address)
        return await self._ask(command, timeout)

    async def _ask(self, command: Command, timeout: float) -> Command:
        self.pulls.append(read_header(command, PullMessage))
        self.codes.append(command.code)
        self.at.append(asyncio.get_running_loop().time())
        self.timeouts.add(timeout)
        connection = cast(ServerConnection, None)
        fault = self._broker.faults.take(self._broker, command)
        if fault is None:
            outcome = await self._broker.execute(command, connection)
        else:
            outcome = await resolve(fault.respond(self._broker, command, connection))
        if not isinstance(outcome, Response):
            raise ConnectionLostError(ADDRESS, command.code, "closed by the peer")
        return Command(
            outcome.code, 0, remark=outcome.remark, ext=dict(outcome.ext), body=outcome.body
        )


class Starts:
    """Start positions set by a test."""

    def __init__(self) -> None:
        self.found = Start(0)
        self.errors: list[RocketMQError] = []
        self.offsets = {"earliest": 0, "latest": 0}

    async def find(self, queue: object) -> Start:
        if self.errors:
            raise self.errors.pop(0)
        return self.found

    async def offset_of(self, queue: object, start: str) -> int:
        return self.offsets[start]


class PullerEnv:
    """A puller of group ``billing`` on topic ``orders``, its context and its owner."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401
        self.config = LitePullConfig(**settings)
        self.group = "billing"
        self.broker = FakeBroker(name="broker-a")
        self.broker.create_topic("orders", 4)
        self.wire = self.instance = FakeInstance(self.broker)
        self.starts = Starts()
        self.cache = Cache()
        self.ready = ReadyQueues(self.cache)
        self.subscriptions = {"orders": subscription("orders", "*", 1)}
        self.filters = FilterHooks()
        self.events: list[ConsumerEvent] = []
        self.publish = self.events.append
        self.warn = partial(ConsumerContext.warn, cast(ConsumerContext[ConsumerConfig], self))
        self.started: list[tuple[PolledQueue, bool]] = []
        self.corrected: list[int] = []
        self.cut_off: list[PolledQueue] = []
        self.recovered: list[PolledQueue] = []
        self.resets: list[int] = []
        self.tasks = self
        self.puller = Puller(
            cast(ConsumerContext[ConsumerConfig], self),
            self,
            cast(StartPositions, self.starts),
            CacheFlowControl(self.config, self.cache),
            on_messages=self.ready.add,
            lite=True,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._faults: list[Fault] = []

    def on_pulled(self, assigned: PolledQueue, messages: int, passed: int) -> None: ...

    def on_started(self, assigned: PolledQueue, *, new: bool) -> None:
        self.started.append((assigned, new))

    async def on_corrected(self, assigned: PolledQueue) -> None:
        self.corrected.append(assigned.committable)

    def on_cut_off(self, assigned: PolledQueue) -> None:
        self.cut_off.append(assigned)

    def on_recovered(self, assigned: PolledQueue) -> None:
        self.recovered.append(assigned)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets += offsets.values()

    def spawn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: object, name: str
    ) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(function(*args), name=name))

    def subscribe(self, expression: str) -> None:
        self.subscriptions["orders"] = subscription("orders", expression, 1)

    def begin(self, queue_id: int = 0, **arguments: float) -> PolledQueue:
        """Pull a queue from now on."""
        assigned = PolledQueue(queue(queue_id), self.cache)
        run = self.puller.run(assigned, **arguments)
        self._tasks.append(asyncio.get_running_loop().create_task(run))
        return assigned

    def put(self, *bodies: str, queue_id: int = 0, tag: str | None = None) -> None:
        properties = encode_properties({TAGS: tag}) if tag is not None else ""
        for body in bodies:
            self.broker.put("orders", body.encode(), queue_id=queue_id, properties=properties)

    def respond(self, what: object, times: int | None = 1) -> None:
        """Set the response to the next pulls."""
        handle = self.broker.faults.handle
        self._faults += [handle(code, cast(Any, what), times=times) for code in PULLS]

    def usual(self) -> None:
        """Remove the responses that were set."""
        for fault in self._faults:
            fault.remove()

    async def polled(self, count: int) -> list[MessageExt]:
        """Return *count* messages once they are there."""
        taken: list[MessageExt] = []

        def poll() -> bool:
            self.ready.mark_processed()
            taken.extend(self.ready.take(count - len(taken)))
            return len(taken) >= count

        await until(poll, f"{count} messages")
        return taken

    async def pulled(self, count: int) -> list[PullMessage]:
        """Return the pulls once there were *count*."""
        await until(lambda: len(self.wire.pulls) >= count, f"{count} pulls")
        return self.wire.pulls

    async def close(self) -> None:
        """Stop; fail if a pull loop ended with an error."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.puller.close()
        errors = [e for e in ended if isinstance(e, Exception)]
        assert errors == []


def bodies(taken: list[MessageExt]) -> list[str]:
    return [each.body.decode() for each in taken]


def found(next_offset: int, body: bytes = b"", code: int = 0) -> Response:
    """Return the response to a pull after which the next one begins at *next_offset*."""
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(next_offset),
    }
    return Response(code, ext, body)


def reset_to(offset: int) -> Response:
    """Return the response after an administrator has reset the offset."""
    return replace(moved(offset), remark="OFFSET_RESET")


def moved(offset: int) -> Response:
    """Return the response that there is no such offset, but *offset*."""
    return found(offset, code=ResponseCode.PULL_OFFSET_MOVED)
