"""Target: requests and notifications from brokers, and the replies to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import CodecError, NotSupportedError
from rocketmq_aio.instance.pending_replies import PendingReplies
from rocketmq_aio.instance.requests_from_broker import BrokerRequestHandler
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    DirectOutcome,
    queue_table,
)
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.replies import reply_message
from rocketmq_aio.protocol.requests import from_broker
from rocketmq_aio.protocol.requests.from_broker import PushReplyMessage
from rocketmq_aio.remoting.inbound_requests import error_reply, reply_frame
from tests.fuzz.corpus import FRAMES, RECORDS, valid
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Signature, Target, kind_of, number_of, outcome
from tests.fuzz.wire import ACCESSORS
from tests.unit.protocol.wire_files import command_in, split
from tests.unit.stored import Stored

GROUPS: Final = ("g", "TopicTest", "broker-a", "cg")
KINDS: Final = (
    from_broker.CheckTransactionState,
    from_broker.NotifyConsumerIdsChanged,
    from_broker.ResetOffset,
    from_broker.GetConsumerStatus,
    from_broker.GetConsumerRunningInfo,
    from_broker.ConsumeMessageDirectly,
    from_broker.PushReplyMessage,
)
HALF: Final = Stored(properties=b"PGROUP\x01g\x02UNIQ_KEY\x01ID1\x02").to_bytes()
QUEUE: Final = MessageQueue("orders", "broker-a", 1)


class Consumer:
    """A consumer of any group, which keeps what it gets."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}

    def on_members_changed(self) -> None:
        pass

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.offsets = dict(offsets)
        assert all(queue.topic == topic for queue in offsets)
        assert all(0 <= offset < 2**63 for offset in offsets.values())

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return {MessageQueue(topic, "broker-a", 1): 7}

    def on_own_id_queried(self, check_id: str) -> None:
        assert isinstance(check_id, str)

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={}, subscription_set=[], mq_table=queue_table({QUEUE: 1})
        )

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeDirectlyResult:
        read_all(message)
        return ConsumeDirectlyResult(consume_result=DirectOutcome.SUCCESS)


class Producer:
    """A transaction producer."""

    def on_transaction_check(
        self, address: str, header: from_broker.CheckTransactionState, message: MessageExt
    ) -> None:
        assert header.tran_state_table_offset is not None
        read_all(message)


def read_all(message: MessageExt) -> None:
    for name in ACCESSORS:
        outcome(getattr, message, name)


class _All(dict[str, Any]):
    """The same client for every group."""

    def __init__(self, client: object) -> None:
        self._client = client

    def get(self, key: str, default: object = None) -> Any:  # noqa: ANN401
        return self._client if key else default


@cache
def handlers() -> tuple[asyncio.Runner, list[BrokerRequestHandler]]:
    made = [
        BrokerRequestHandler(_All(Consumer()), _All(Producer()), PendingReplies(), config)
        for config in (ClientConfig(), ClientConfig(namespace="ns"))
    ]
    return asyncio.Runner(), made


def request_seeds(random: Random) -> list[bytes]:
    """Return frames without their length: encoding and header length, header, body."""
    codes = {int(kind.code) for kind in KINDS}
    found = [frame for frame in FRAMES if command_in(frame).code in codes]
    bodies = [HALF, b"", b'{"offsetTable":{}}', *RECORDS[:6]]
    for kind in KINDS * 20:
        header = valid(kind, random)
        command = Command(int(kind.code), 7, body=random.choice(bodies))
        found.append(encode_command(command, to_ext_fields(header), binary=random.random() < 0.5))
    return [frame[4:] for frame in found]


def mutated_request(mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mutate header or body; the lengths follow."""
    encoding, header, body = split(len(data).to_bytes(4, "big") + data)
    choice = mutator.random.random()
    if choice < 0.4:
        header = mutator.change_json(header) if encoding == 0 else mutator.change(header)
    elif choice < 0.8:
        body = mutator.change_json(body) if body[:1] == b"{" else mutator.change(body, RECORDS)
    else:
        header, body = mutator.change(header), mutator.change(body)
    return (encoding << 24 | len(header)).to_bytes(4, "big") + header + body


def check_request(data: bytes) -> Signature:
    command = outcome(decode_command, *split(len(data).to_bytes(4, "big") + data))
    if isinstance(command, Exception):
        return kind_of(command)
    if command.code == PushReplyMessage.code:
        check_reply(command)
    runner, both = handlers()
    handler = both[number_of(data, 2)]
    failure: Exception | None = None
    try:
        reply = runner.run(handler.handle("127.0.0.1:10911", command))
    except (CodecError, NotSupportedError) as error:
        reply, failure = error_reply(error), error
    if reply is not None:
        again = decode_command(*split(reply_frame(command, reply)))
        assert (again.opaque, again.is_response) == (command.opaque, True)
    return command.code if reply else 0, kind_of(failure), reply is None


def check_reply(command: Command) -> None:
    header = outcome(from_broker_header, command)
    if isinstance(header, PushReplyMessage):
        message = outcome(reply_message, header, command.body)
        if isinstance(message, MessageExt):
            read_all(message)


def from_broker_header(command: Command) -> PushReplyMessage:
    return read_header(command, PushReplyMessage)


REQUESTS: Final = (
    Target(
        name="broker-requests",
        seeds=request_seeds,
        mutate=mutated_request,
        check=check_request,
        weight=5,
        grows=20_000,
    ),
)
