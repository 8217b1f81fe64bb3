"""Pop client: requests to pop, acknowledge, change the invisible time, and send to the DLQ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from rocketmq_aio.consumer.common.broker_clock import BrokerClock
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.redelivery import DEAD_LETTER, SendBack
from rocketmq_aio.consumer.pop.message import PoppedMessage, read_popped
from rocketmq_aio.consumer.pull_loop.message_decoder import MessageDecoder
from rocketmq_aio.errors import (
    NO_RESPONSE,
    BusyError,
    CodecError,
    NotConnectedError,
    NotSupportedError,
    RocketMQError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.name_servers import AT_BROKERS
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import BatchAckRequest
from rocketmq_aio.protocol.codes import V5_0_0, V5_1_3, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.namespaces import namespace_of
from rocketmq_aio.protocol.receipt import batch_acks, fits_batch, retry_topics, with_receipts
from rocketmq_aio.protocol.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.response_errors import broker_error

POP_SLACK_SECONDS: Final = 10.0
NOTHING: Final = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.NO_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)
# Errors after which the same request may succeed later.
PASSING: Final = (BusyError, *NO_RESPONSE)
ACKS_PER_BROKER: Final = 16  # in flight, if the broker takes one message per request
FROM: Final = {"earliest": 0, "latest": 1}
OLD_BROKER: Final = "popping needs a broker of RocketMQ 5.0 or newer"
AT_PROXY: Final = (
    "a proxy does not serve pops of remoting clients: use PushConsumer or LitePullConsumer, "
    f"or {AT_BROKERS}"
)


class PopRequest(NamedTuple):
    """Parameters of a pop; with *wait_seconds* 0 the broker responds at once."""

    most: int
    invisible_seconds: float
    wait_seconds: float


class Popped(NamedTuple):
    """Messages of a pop, and the decoding error behind them."""

    messages: list[PoppedMessage]
    fault: Exception | None


@dataclass(eq=False)
class _Master:
    """State of the current master of a broker."""

    address: str
    clock: BrokerClock = field(default_factory=BrokerClock)
    rejects_batches: bool = False


class PopClient:
    """Sends the requests of one group; raises the errors of `BrokerClient`."""

    def __init__(self, instance: MQClientInstance, group: str, *, start_from: str) -> None:
        self._instance = instance
        self._group = group
        self._init_mode = FROM[start_from]
        self._masters: dict[str, _Master] = {}  # by broker name
        self._decoder = MessageDecoder(instance)
        self._send_back = SendBack(instance, group, max_reconsume_times=0)
        self._remoting = instance.remoting
        namespace = namespace_of(instance.config)
        self._outer: Callable[[str], str] = str if namespace is None else namespace.outer

    def close(self) -> None:
        self._decoder.close()

    def check_version(self, broker_name: str) -> None:
        """Check that the broker can be popped from, as far as it is known.

        :raises NotSupportedError: it is too old, or a proxy
        """
        address = self._instance.routes.master(broker_name) or ""
        if self._instance.name_servers.are_proxies:
            raise NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, AT_PROXY, address)
        version = self._instance.heartbeats.broker_versions.get(address, V5_0_0)
        if version < V5_0_0:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise NotSupportedError(code, OLD_BROKER, address)

    async def pop(
        self,
        source: MessageQueue,
        wanted: Subscription,
        request: PopRequest,
        attempt_id: str | None,
    ) -> Popped:
        """Pop messages of *source*, whose queue id may be -1; in order with *attempt_id*.

        The first pop from a broker does not wait: a wait needs the broker's time.
        """
        master = self._master(source.broker_name)
        address, clock = master.address, master.clock
        requested_at = boottime()
        broker_ms = clock.now_ms(requested_at)
        header = PopMessage(
            consumer_group=self._group,
            topic=source.topic,
            queue_id=source.queue_id,
            max_msg_nums=request.most,
            invisible_time=int(request.invisible_seconds * 1000),
            poll_time=int(request.wait_seconds * 1000) if broker_ms else 0,
            born_time=broker_ms,
            init_mode=self._init_mode,
            exp_type=wanted.kind,
            exp=wanted.expression,
            order=attempt_id is not None,
            attempt_id=attempt_id,
            broker_name=source.broker_name,
        )
        timeout = None
        if header.poll_time:
            timeout = request.wait_seconds + POP_SLACK_SECONDS
        command = await self._remoting.request(address, header, timeout=timeout)
        now = boottime()
        if command.code == ResponseCode.SUCCESS:
            response = read_header(command, PopMessageResponse)
            age = clock.note_response(response.pop_time, requested_at, now)
            topic = self._outer(source.topic)
            retries = retry_topics(self._outer(self._group), topic)
            body = with_receipts(command.body, response, topic, retries, source.broker_name)
            decoded = await self._decoder.decode(body, source)
            return Popped(*read_popped(decoded, response, self._group, source, now, age))
        if command.code not in NOTHING:
            if command.code != ResponseCode.POLLING_FULL:
                clock.forget()  # it may be wrong by a former response, and the reason
            raise self._pop_error(command, address)
        _note_time(command, clock, requested_at, now, header.poll_time / 1000)
        return Popped([], None)

    def _pop_error(self, command: Command, address: str) -> Exception:
        if command.code == ResponseCode.POLLING_FULL:
            return BusyError(command.code, command.remark, address)
        if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return NotSupportedError(command.code, f"{OLD_BROKER}: {command.remark}", address)
        if command.code == ResponseCode.SYSTEM_ERROR and self._instance.name_servers.are_proxies:
            return NotSupportedError(command.code, AT_PROXY, address)
        return broker_error(command, address)

    async def ack(self, messages: Sequence[PoppedMessage]) -> dict[PoppedMessage, RocketMQError]:
        """Acknowledge *messages*, all of one broker, in one request where that works.

        Returns the errors.
        """
        try:
            master = self._master(messages[0].receipt.broker_name)
        except NotConnectedError as error:
            return dict.fromkeys(messages, error)
        if len(messages) == 1 or not self._takes_batches(master):
            return await self._ack_one_by_one(master.address, messages)
        batch = [each for each in messages if fits_batch(each.receipt)]
        failed: dict[PoppedMessage, RocketMQError] = {}
        alone = [each for each in messages if not fits_batch(each.receipt)]
        try:
            if not await self._ack_batch(master, batch):
                alone = list(messages)
        except RocketMQError as error:
            failed = dict.fromkeys(batch, error)
        return failed | await self._ack_one_by_one(master.address, alone)

    async def _ack_one_by_one(
        self, address: str, messages: Sequence[PoppedMessage]
    ) -> dict[PoppedMessage, RocketMQError]:
        async def ack(message: PoppedMessage) -> None:
            header = AckMessage(**self._receipt_fields(message))
            await self._remoting.request_checked(address, header)

        # After a passing error the others would fail too, each after its own timeout.
        return (await gather_limited(ack, messages, ACKS_PER_BROKER, final=PASSING)).failures

    async def change(
        self, message: PoppedMessage, seconds: float, *, suspend: bool
    ) -> ChangeInvisibleTimeResponse:
        address = self._master(message.receipt.broker_name).address
        header = ChangeInvisibleTime(
            **self._receipt_fields(message),
            invisible_time=max(1, int(seconds * 1000)),
            suspend=True if suspend else None,
        )
        command = await self._remoting.request_checked(address, header)
        return read_header(command, ChangeInvisibleTimeResponse)

    async def send_to_dlq(self, message: PoppedMessage) -> None:
        """Store a copy of *message* in the dead-letter queue of the group."""
        if not await self._send_back.can_restore(message):
            await self._send_back.send_back(message, DEAD_LETTER)
            return
        address, topic = self._master(message.receipt.broker_name).address, message.topic
        version = self._instance.heartbeats.broker_versions.get(address, V5_0_0)
        if version < V5_1_3:  # it compares the topic with the stored message
            topic = message.receipt.stored_topic(self._group, topic)
        header = ConsumerSendMsgBack(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=DEAD_LETTER,
            origin_msg_id=message.message_id,
            origin_topic=topic,
            max_reconsume_times=0,
            unit_mode=self._instance.config.unit_mode,
            broker_name=message.receipt.broker_name,
        )
        await self._remoting.request_checked(address, header)

    def _takes_batches(self, master: _Master) -> bool:
        version = self._instance.heartbeats.broker_versions.get(master.address, 0)
        return version >= V5_1_3 and not master.rejects_batches

    async def _ack_batch(self, master: _Master, messages: Sequence[PoppedMessage]) -> bool:
        """Return whether the broker supports the request."""
        if not messages:
            return True
        broker_name = messages[0].receipt.broker_name
        acks = batch_acks(self._group, [(each.topic, each.receipt) for each in messages])
        body = msgspec.json.encode(BatchAckRequest(broker_name=broker_name, acks=acks))
        try:
            await self._remoting.request_checked(master.address, BatchAckMessage(), body)
        except NotSupportedError:
            master.rejects_batches = True
            return False
        return True

    def _receipt_fields(self, message: PoppedMessage) -> dict[str, Any]:
        receipt = message.receipt
        return {
            "consumer_group": self._group,
            "topic": receipt.stored_topic(self._group, message.topic),
            "queue_id": receipt.queue_id,
            "extra_info": str(receipt),
            "offset": receipt.offset,
            "broker_name": receipt.broker_name,
        }

    def _master(self, broker_name: str) -> _Master:
        address = self._instance.routes.master(broker_name)
        if address is None:
            raise NotConnectedError(broker_name, "no route names a master of this broker")
        known = self._masters.get(broker_name)
        if known is None or known.address != address:
            known = self._masters[broker_name] = _Master(address)
        return known


def _note_time(
    command: Command, clock: BrokerClock, requested_at: float, now: float, wait_seconds: float
) -> None:
    """Note the broker's time from a response without messages, if it has one.

    Without it, and before the end of the wait, the broker counted the request as too old.
    """
    try:
        response = read_header(command, PopMessageResponse)
    except CodecError:
        return
    if response.pop_time > 0:
        clock.note_response(response.pop_time, requested_at, now)
    elif command.code == ResponseCode.POLLING_TIMEOUT and now - requested_at < wait_seconds:
        clock.forget()
