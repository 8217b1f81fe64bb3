"""Log check: whether the log of a master contains what was pulled before.

A machine that failed can have lost its last messages, and a replica that becomes master lacks those
that were not copied to it; both store others at their offsets.  Brokers do not report that: a pull
at an offset that exists again returns the messages after it, and those before it would never be
read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from rocketmq_aio.consumer.pull_loop.pull_request import PullRequest, is_reset, read_response
from rocketmq_aio.consumer.pull_loop.queue_state import LastMessage
from rocketmq_aio.errors import (
    BrokerError,
    CodecError,
    NotSupportedError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.time_search import TimeSearch
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.subscription import subscription
from rocketmq_aio.remoting.response_errors import broker_error

MAX_OFFSET: Final = 2**63 - 1
NOT_THERE: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)


class StoredAt(NamedTuple):
    """Where and when a message was stored, the same at all replicas; identifies it."""

    offset: int
    log_offset: int
    store_time: datetime


def stored_at(message: MessageExt) -> StoredAt | None:
    """Return where *message* was stored; None if its store time is out of range."""
    try:
        return StoredAt(message.queue_offset, message.commit_log_offset, message.store_time)
    except CodecError:
        return None


def stored_by(queue: MessageQueue, message: LastMessage | None) -> StoredAt | None:
    """Return where *message* was stored; None if there is none, or as `stored_at`."""
    if message is None:
        return None
    offset, head = message
    return stored_at(MessageExt(queue.topic, b"", queue, offset, head, b""))


class LogCheck:
    """Compares logs of masters, each with one pull of one message; finds where they differ.

    :param lite: the group is of a lite pull consumer
    :param on_reset: called with the response of a pull that returned a reset, which is sent once
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        *,
        lite: bool,
        on_reset: Callable[[MessageQueue, Command], None],
    ) -> None:
        self._instance = instance
        self._on_reset = on_reset
        self._group = group
        self._lite = lite
        self._may_query = True

    async def is_same(self, queue: MessageQueue, last: StoredAt) -> bool:
        """Whether the log certainly is the one in which *last* was found: it began before.

        :raises RocketMQError: there is no connection
        """
        if not self._may_query:
            return False
        try:
            earliest = await self._instance.broker.earliest_store_time(queue)
        except (PermissionDeniedError, NotSupportedError, RequestTimeoutError):
            self._may_query = False  # by this account, behind a proxy, or of a peer without it
            return False
        except (BrokerError, CodecError):
            return False
        return 0 <= earliest <= millis_of(last.store_time)

    async def message_at(
        self, queue: MessageQueue, address: str, offset: int
    ) -> LastMessage | None:
        """Return the message at *offset*, None if it is not there.

        :raises RocketMQError: the master did not respond, or is not the master
        """
        command = await self._pull(queue, address, offset, 1)
        messages, _ = self._instance.remoting.decode(command.body, queue)
        return next(((offset, each.head) for each in messages if each.queue_offset == offset), None)

    async def end_of(self, queue: MessageQueue, address: str) -> int:
        """Return the offset after the last message, which a pull behind it returns.

        :raises RocketMQError: the master did not respond, or is not the master
        """
        return read_response(await self._pull(queue, address, MAX_OFFSET, 1)).max_offset

    async def first_difference(
        self, queue: MessageQueue, address: str, last: StoredAt
    ) -> int | None:
        """Return the first offset that may differ from the log in which *last* was found.

        That is the one after *last*, if it is still there.  Otherwise it is that of the first
        message stored after *last*, so clocks of brokers must not differ by more than the time that
        a failover takes; at most the offset of *last*.  None: the log begins after *last*.

        :raises RocketMQError: the master did not respond, or is not the master
        """
        command = await self._pull(queue, address, last.offset, 1)
        differs = self._differs(queue, command, last)
        if not differs:
            return None if differs is None else last.offset + 1
        after, response = millis_of(last.store_time) + 1, read_response(command)
        bounds = max(0, response.min_offset), response.max_offset
        return min(await self._first_since(queue, address, after, *bounds), last.offset)

    async def _first_since(
        self, queue: MessageQueue, address: str, millis: int, least: int, most: int
    ) -> int:
        """Return the first offset stored at or after *millis*; *most* if there is none."""
        try:
            hint = await self._instance.broker.offset_for_time(queue, millis)
        except (PermissionDeniedError, NotSupportedError):  # an account that may pull is enough
            hint = most

        async def read(offset: int, count: int) -> list[tuple[int, int]]:
            while offset < most:
                command = await self._pull(queue, address, offset, count)
                if command.code == ResponseCode.SUCCESS:
                    return self._store_times(command, queue)
                following = read_response(command).next_begin_offset
                if following <= offset:
                    break
                offset = following  # after deleted messages
            return []

        return await TimeSearch(millis, least, most, hint).find(read)

    def _store_times(self, command: Command, queue: MessageQueue) -> list[tuple[int, int]]:
        """Return offsets and store times of the messages in a response."""
        messages, _ = self._instance.remoting.decode(command.body, queue)
        stored = [each for each in map(stored_at, messages) if each is not None]
        return [(each.offset, millis_of(each.store_time)) for each in stored]

    def _differs(self, queue: MessageQueue, command: Command, last: StoredAt) -> bool | None:
        """Return whether *last*, which was pulled, is not in the log; None: it begins after it."""
        if command.code in NOT_THERE:
            # An offset after it: retention has deleted it.
            return True if read_response(command).next_begin_offset <= last.offset else None
        messages, _ = self._instance.remoting.decode(command.body, queue)
        same_offset = [each for each in messages if each.queue_offset == last.offset]
        return any(stored_at(each) != last for each in same_offset)

    async def _pull(self, queue: MessageQueue, address: str, offset: int, count: int) -> Command:
        everything, on_reset = subscription(queue.topic, "*", 0), partial(self._on_reset, queue)
        request = PullRequest(
            self._instance, self._group, queue, everything, count, lite=self._lite, on_late=on_reset
        )
        command = await request.send(address, offset)
        if is_reset(command.remark):
            on_reset(command)
            command = await request.send(address, offset)
        if command.code != ResponseCode.SUCCESS and command.code not in NOT_THERE:
            raise broker_error(command, address)
        return command
