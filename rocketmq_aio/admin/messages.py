"""Message queries: by offset message id, by key, by tag, by producer id."""

from __future__ import annotations

import binascii
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from datetime import datetime
from ipaddress import ip_address
from typing import Final, Literal, cast

import anyio
from msgspec.structs import replace

from rocketmq_aio.admin.offset_search import OffsetSearch, records
from rocketmq_aio.admin.server_results import DirectConsumption, TraceEvent
from rocketmq_aio.admin.servers import FOUND_OR_NOT, Servers, not_supported
from rocketmq_aio.admin.trace_events import trace_events
from rocketmq_aio.config.arguments import MAX_LONG, checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import (
    AdminError,
    BrokerError,
    CodecError,
    ConfigError,
    MessageNotFoundError,
    NotConnectedError,
    UnreadableMessagesError,
)
from rocketmq_aio.model.address import MAX_PORT, parse_address
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import LMQ_PREFIX, check_topic
from rocketmq_aio.model.timestamps import EPOCH, millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumeDirectlyResult
from rocketmq_aio.protocol.codes import CLIENT_VERSION, V5_4_0, ResponseCode
from rocketmq_aio.protocol.record import decode_record, stored_message
from rocketmq_aio.protocol.requests.admin import QueryMessage, ViewMessage
from rocketmq_aio.protocol.requests.from_broker import ConsumeMessageDirectly
from rocketmq_aio.remoting.dial import Resolver
from rocketmq_aio.remoting.response_errors import is_about_account

Wanted = Callable[[MessageExt], bool]

ID_BYTES: Final = (16, 28)  # IPv4 or IPv6 address, port, offset
SIGNED_QUERY_VERSION: Final = 399  # see QueryMessage
INDEX_TYPES: Final = {"key": "K", "tag": "T", "message_id": "U"}
INDEX_MS: Final = 1000  # brokers round the times in their indexes down, by less than this
TAGS_NOT_INDEXED: Final = "this needs a broker of 5.4 or newer: older ones do not index tags"
NOT_LISTED: Final = (
    "no name server lists a broker at this address: the broker of the message is down, or the id "
    "is one of another cluster"
)
READ_AT_ONCE: Final = 32  # messages of one pull
DEFAULT_MAX_MESSAGES: Final = 64  # the default limit of brokers


@checked_arguments
class MessageAdmin:
    """Finds and reads messages: ``admin.messages``."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._search = OffsetSearch(servers)
        self._resolver = Resolver()

    async def by_offset_id(self, offset_message_id: str) -> MessageExt:
        """Return the message that *offset_message_id* refers to.

        The id contains the address of the broker to ask; ``address_mapper`` applies.

        :raises ConfigError: the id is invalid, or refers to a batch that is stored as one
        :raises NotConnectedError: its broker is down, or not in the cluster
        :raises MessageNotFoundError: there is no message, or it has been deleted
        :raises CodecError: it cannot be decoded, for example without the extra ``compression``
        """
        first, *others = await self.batch_by_offset_id(offset_message_id)
        if others:
            count = 1 + len(others)
            reason = f"a batch of {count} messages is stored there: use batch_by_offset_id()"
            raise ConfigError("offset_message_id", offset_message_id, reason)
        return first

    async def batch_by_offset_id(self, offset_message_id: str) -> list[MessageExt]:
        """Return all messages that *offset_message_id* refers to.

        There are several in a batch that is stored as one (topics of the type BatchCQ).  Errors
        are those of `by_offset_id`.
        """
        stored_at, offset = read_offset_id(offset_message_id)
        name, address = await self._broker_at(stored_at)
        body = await self._view(address, offset)
        if not _begins_at(body, offset):
            raise _not_found(address, offset)
        stored = stored_message(body, name)
        return [self._renamed(each) for each in decode_record(body, stored.queue)]

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
    ) -> list[MessageExt]:
        """Return the messages of *topic* that have *key*, in the order of their store times.

        Brokers index keys shortly after they acknowledge a message.

        :param max_messages: per broker; a broker has a limit of its own, 64 by default
        :raises UnreadableMessagesError: some cannot be decoded; ``messages`` has the others
        :raises AdminError: some brokers did not answer; ``done`` has the messages of the others
        """
        header = _query(topic, "key", key, begin, end, max_messages)
        return await self._query(header, lambda each: key in each.keys)

    async def by_tag(
        self,
        topic: str,
        tag: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
    ) -> list[MessageExt]:
        """Return the newest messages of *topic* that have *tag*; `read` yields all of them.

        :param max_messages: per broker; a broker has a limit of its own, 64 by default
        :raises NotSupportedError: brokers older than 5.4 do not index tags; other errors are those
            of `by_key`
        """
        if "|" in tag:
            raise ConfigError("tag", tag, "expected one tag")
        header = _query(topic, "tag", tag, begin, end, max_messages)
        return await self._query(header, lambda each: each.tags == tag)

    async def by_id(
        self,
        topic: str,
        message_id: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> list[MessageExt]:
        """Return the messages of *topic* with the producer's id (``message_id``).

        There are several if a send was retried, or for the id of a batch that is stored as one.
        Parameters and errors are those of `by_key`.
        """
        header = _query(topic, "message_id", message_id, begin, end, DEFAULT_MAX_MESSAGES)
        return await self._query(header, lambda each: each.message_id == message_id)

    async def by_offset(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at *offset* of a queue.

        The account has to be allowed to read as the group ``TOOLS_CONSUMER``.

        :raises ConfigError: the topic has no such queue
        :raises MessageNotFoundError: there is no message, or it has been deleted
        """
        async for message in self.read(queue, begin=offset, end=offset + 1):
            return message
        remark = f"there is no message at offset {offset} of {queue}"
        raise MessageNotFoundError(ResponseCode.PULL_NOT_FOUND, remark, queue.broker_name)

    def by_time(
        self, topic: str, begin: datetime, end: datetime | None = None, *, expression: str = "*"
    ) -> AsyncGenerator[MessageExt]:
        """Yield the messages of *topic* that were stored from *begin* to *end*; see `read`."""
        return self.read(topic, begin=begin, end=end, expression=expression)

    async def read(
        self,
        source: str | MessageQueue,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        expression: str = "*",
        max_messages: int | None = None,
    ) -> AsyncGenerator[MessageExt]:
        """Yield the messages of a topic or a queue, queue after queue, without a group.

        The account has to be allowed to read as the group ``TOOLS_CONSUMER``.  Messages that
        are stored after the call are not included.

        :param begin: store time, or offset in each queue; default the first message
        :param end: time or offset after the last message; default the end of each queue now
        :param expression: tags, such as ``"a || b"``
        :raises ConfigError: an argument is invalid, or the topic has no such queue
        :raises CodecError: a message cannot be decoded
        """
        topic = check_topic(source.topic if isinstance(source, MessageQueue) else source)
        if max_messages is not None:
            checked_count("max_messages", max_messages)
        tags = {each.strip() for each in expression.split("||")} - {"*", ""}
        routes = self._servers.instance.routes
        with routes.pin(topic):
            queues = sorted((await routes.fetch(topic)).subscribe_queues)
            if isinstance(source, MessageQueue):
                if source not in queues:
                    raise ConfigError("queue", source, f"topic {topic} has no such queue")
                queues = [source]
            ranges = {queue: await self._range(queue, begin, end) for queue in queues}
            count = 0
            for queue, (first, last) in ranges.items():
                async for message in self._read_queue(queue, first, last, expression):
                    if not tags or message.tags in tags:  # brokers compare hashes
                        yield message
                        count += 1
                        if count == max_messages:
                            return

    async def trace(
        self,
        message_id: str,
        *,
        trace_topic: str = "RMQ_SYS_TRACE_TOPIC",
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> list[TraceEvent]:
        """Return what clients with message traces recorded of a message, in the order of time.

        :param message_id: the producer's id
        :raises RouteNotFoundError: there is no trace topic: brokers have ``traceTopicEnable=false``
        :raises AdminError: some brokers did not answer; ``done`` has the events of the others
        """
        self._servers.instance.remoting.share(trace_topic)
        header = _query(trace_topic, "key", message_id, begin, end, DEFAULT_MAX_MESSAGES)

        def events_of(stored: Iterable[MessageExt]) -> list[TraceEvent]:
            events = [event for each in stored for event in trace_events(each, message_id)]
            return sorted(events, key=lambda each: each.time or EPOCH)

        try:
            return events_of(await self._query(header, lambda each: message_id in each.keys))
        except AdminError as error:
            done = {name: events_of(cast("list[MessageExt]", e)) for name, e in error.done.items()}
            raise AdminError(error.action, done, error.failed) from error

    async def consume_directly(
        self, offset_message_id: str, group: str, client_id: str
    ) -> DirectConsumption:
        """Make a connected member of *group* run its handler on a message once.

        Nothing is committed.  Brokers wait up to 10 s for the handler, and so does this call,
        whatever ``request_timeout_seconds`` is.

        :raises ConfigError: the id is invalid
        :raises NotConnectedError: the broker of the message is down, or not in the cluster
        :raises MessageNotFoundError: there is no message
        :raises BrokerError: the member is not connected, or has no handler
        """
        message = await self.by_offset_id(offset_message_id)
        _, address = await self._broker_at(read_offset_id(offset_message_id)[0])
        header = ConsumeMessageDirectly(
            consumer_group=group,
            client_id=client_id,
            msg_id=offset_message_id,
            broker_name=message.queue.broker_name,
            topic=message.topic,
        )
        result = await self._servers.read(address, header, ConsumeDirectlyResult)
        return DirectConsumption(
            outcome=result.consume_result.value,
            seconds=result.spent_time_mills / 1000,
            remark=result.remark,
        )

    async def _range(
        self, queue: MessageQueue, begin: datetime | int | None, end: datetime | int | None
    ) -> tuple[int, int]:
        """Return the first offset and the one after the last, both within the queue."""
        broker = self._servers.instance.broker
        least, most = await broker.min_offset(queue), await broker.max_offset(queue)

        async def offset(setting: str, bound: datetime | int | None, default: int) -> int:
            if bound is None:
                return default
            if isinstance(bound, int):
                return min(max(bound, least), most)
            return await self._search.offset_at(queue, _millis(setting, bound, 0))

        return await offset("begin", begin, least), await offset("end", end, most)

    async def _read_queue(
        self, queue: MessageQueue, at: int, last: int, expression: str
    ) -> AsyncGenerator[MessageExt]:
        while at < last:
            count = min(READ_AT_ONCE, last - at)
            body, response = await self._search.pull(queue, at, count, expression)
            for message in _read(body, queue, response.offset_delta or 0):
                if at <= message.queue_offset < last:
                    yield self._renamed(message)
            if response.next_begin_offset <= at:
                return  # the queue has been truncated or deleted meanwhile
            at = response.next_begin_offset

    async def _view(self, address: str, offset: int) -> bytes:
        try:
            return (await self._servers.request(address, ViewMessage(offset=offset))).body
        except BrokerError as error:
            # Brokers fail with a system error where no message begins.
            if error.code != ResponseCode.SYSTEM_ERROR or is_about_account(error):
                raise
            raise _not_found(address, offset) from error

    async def _query(self, header: QueryMessage, wanted: Wanted) -> list[MessageExt]:
        unreadable: list[tuple[MessageExt, CodecError]] = []
        signed = self._servers.instance.config.credentials is not None
        version = SIGNED_QUERY_VERSION if signed else CLIENT_VERSION
        begin_ms, end_ms = header.begin_timestamp, header.end_timestamp
        asked = replace(header, begin_timestamp=max(0, begin_ms - INDEX_MS))

        async def query(name: str, address: str) -> list[MessageExt]:
            command = await self._servers.request(
                address, asked, accept=FOUND_OR_NOT, version=version
            )
            if header.index_type == INDEX_TYPES["tag"] and command.version < V5_4_0:
                raise not_supported(address, TAGS_NOT_INDEXED)
            if command.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            matches: list[MessageExt] = []
            for record in records(command.body):
                stored = stored_message(record, name)
                try:
                    inside = decode_record(record, stored.queue)
                except CodecError as fault:
                    unreadable.append((self._renamed(stored), fault))
                    continue
                whole = wanted(stored)  # brokers index a batch as a whole
                matches += [self._renamed(each) for each in inside if whole or wanted(each)]
            found = {  # brokers return a message once for each time that it has the key
                (each.offset_message_id, each.queue_offset): each
                for each in matches
                if each.topic == header.topic and begin_ms <= millis_of(each.store_time) <= end_ms
            }
            return sorted(found.values(), key=_store_order)

        replicas = await self._servers.replicas_of(header.topic)
        action = f"looking for {header.key} in {header.topic}"
        matches = (await self._servers.on_each(action, replicas, query)).values()
        messages = sorted((each for some in matches for each in some), key=_store_order)
        failed = [each for each in unreadable if wanted(each[0]) and each[0].topic == header.topic]
        if failed:
            raise UnreadableMessagesError(messages, failed)
        return messages

    def _renamed(self, message: MessageExt) -> MessageExt:
        """Return *message* with the application's names."""
        namespace = self._servers.instance.remoting.namespace
        if namespace is not None:
            namespace.received(message)
        return message

    async def _broker_at(self, stored_at: str) -> tuple[str, str]:
        """Return name and advertised address of the broker at *stored_at*, an IP and port.

        An id may come from anywhere: hosts that no name server lists get no request.
        """
        brokers = (await self._servers.cluster_info()).brokers
        with anyio.move_on_after(self._servers.instance.config.request_timeout_seconds):
            for broker in brokers:
                for address in broker.addresses.values():
                    if await self._is_at(address, stored_at):
                        return broker.broker_name, address
        raise NotConnectedError(stored_at, NOT_LISTED)

    async def _is_at(self, advertised: str, stored_at: str) -> bool:
        """Whether the address *advertised*, maybe a host name, is *stored_at*, an IP and port."""
        ip, port = parse_address(stored_at)
        try:
            host, advertised_port = parse_address(advertised)
            if port != advertised_port:
                return False
            return str(ip_address(ip)) in await self._resolver.resolve(host, port)
        except (ValueError, OSError):  # ValueError: no host has such a name
            return False


def _read(body: bytes, queue: MessageQueue, delta: int) -> Iterator[MessageExt]:
    """Yield the messages of a pull from *queue*, with their offsets in it."""
    for record in records(body):
        source = queue
        if not queue.topic.startswith(LMQ_PREFIX):  # those are stored in other topics
            topic = stored_message(record, queue.broker_name).topic  # with the namespace
            source = MessageQueue(topic, queue.broker_name, queue.queue_id)
        for message in decode_record(record, source):
            message.queue_offset += delta  # of a static topic
            yield message


def read_offset_id(text: str) -> tuple[str, int]:
    """Return the broker's address and the commit log offset; ConfigError if *text* is no id."""
    try:
        data = binascii.unhexlify(text)
    except (ValueError, TypeError):
        data = b""
    if len(data) not in ID_BYTES:
        reason = "expected the 32 or 56 hex digits of an offset message id"
        raise ConfigError("offset_message_id", text, reason)
    host = ip_address(data[:-12])
    port, offset = int.from_bytes(data[-12:-8], "big"), int.from_bytes(data[-8:], "big")
    if not 0 < port <= MAX_PORT or offset > MAX_LONG:
        reason = "not the id of a broker; messages.by_id() finds the message_id of a producer"
        raise ConfigError("offset_message_id", text, reason)
    shown = f"[{host}]" if host.version == 6 else str(host)
    return f"{shown}:{port}", offset


def _store_order(message: MessageExt) -> tuple[datetime, MessageQueue, int]:
    return message.store_time, message.queue, message.queue_offset


def _begins_at(body: bytes, offset: int) -> bool:
    try:
        return stored_message(body, "").commit_log_offset == offset
    except CodecError:
        return False


def _not_found(address: str, offset: int) -> MessageNotFoundError:
    remark = f"no message begins at {offset} of its commit log, or none any more"
    return MessageNotFoundError(ResponseCode.SYSTEM_ERROR, remark, address)


def _query(
    topic: str,
    kind: Literal["key", "tag", "message_id"],
    key: str,
    begin: datetime | None,
    end: datetime | None,
    max_messages: int,
) -> QueryMessage:
    checked_count("max_messages", max_messages)
    return QueryMessage(
        topic=check_topic(topic),
        key=key,
        max_num=max_messages,
        begin_timestamp=_millis("begin", begin, 0),
        end_timestamp=_millis("end", end, MAX_LONG),
        index_type=INDEX_TYPES[kind],
        by_id=kind == "message_id",
    )


def _millis(setting: str, when: datetime | None, default: int) -> int:
    if when is None:
        return default
    if when.utcoffset() is None:
        raise ConfigError(setting, when, "expected a datetime with a time zone")
    return max(0, millis_of(when))
