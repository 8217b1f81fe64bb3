"""Pulls: requests with a prepared frame, and the messages of their responses."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.protocol.header import queue_fields, read_header
from rocketmq_aio.protocol.requests.pull import LitePullMessage, PullMessage, PullMessageResponse
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.protocol.templates import RequestTemplate
from rocketmq_aio.remoting.connection import OnLate

# Pulls never carry a commit: brokers process requests in any order, so it could overwrite a later
# commit that is already confirmed (seen on live 4.9.7 and 5.5.0 brokers).
NO_COMMIT: Final = 0
# A broker responds to an empty long poll at the first 5 s tick after the hold time (seen live).
HOLD_SLACK_SECONDS: Final = 15.0


class PullRequest:
    """Pulls of one queue with one expression: everything but the offset is encoded once.

    :param lite: pull for a lite pull consumer or reader
    :param own_code: send LITE_PULL_MESSAGE instead of PULL_MESSAGE; brokers from 5.0 know it
    :param wait_seconds: how long the broker may hold the request at the end of the queue
    :param on_late: called with a response that arrives after the pull was abandoned
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        queue: MessageQueue,
        subscription: Subscription,
        max_messages: int,
        *,
        lite: bool = False,
        own_code: bool = False,
        wait_seconds: float = 0.0,
        max_bytes: int | None = None,
        on_late: OnLate | None = None,
    ) -> None:
        self._remoting = instance.remoting
        self._timeout = instance.config.request_timeout_seconds
        self._on_late = on_late
        self.subscription = subscription
        self.own_code = own_code
        flags = PULL_SUBSCRIPTION
        if wait_seconds:
            self._timeout = wait_seconds + HOLD_SLACK_SECONDS
            flags |= PULL_SUSPEND
        if lite:
            flags |= PULL_LITE
        self._header = (LitePullMessage if own_code else PullMessage)(
            consumer_group=group,
            queue_offset=0,
            max_msg_nums=max_messages,
            sys_flag=flags,
            commit_offset=NO_COMMIT,
            suspend_timeout_millis=int(wait_seconds * 1000),
            subscription=subscription.expression,
            sub_version=subscription.version,
            expression_type=subscription.kind,
            max_msg_bytes=max_bytes,
            **queue_fields(queue),
        )
        self._template = RequestTemplate(self._header, "queueOffset")

    def send(
        self, address: str, offset: int, timeout: float | None = None
    ) -> Coroutine[Any, Any, Command]:
        """Pull from *offset* on; a plain function, which adds no coroutine to the call."""
        remoting, template, on_late = self._remoting, self._template, self._on_late
        seconds = self._timeout if timeout is None else timeout
        if not remoting.takes_prepared:
            header = msgspec.structs.replace(self._header, queue_offset=offset)
            return remoting.request(address, header, timeout=seconds, on_late=on_late)

        def frame(opaque: int) -> tuple[bytes, bytes]:
            return template.frame(opaque, str(offset)), b""

        return remoting.exchange(address, template.code, frame, seconds, on_late)


def is_reset(remark: str | None) -> bool:
    """Whether the remark of a response means that an administrator reset the offset (5.x)."""
    return "OFFSET_RESET" in (remark or "")


def read_response(command: Command) -> PullMessageResponse:
    """Return the header of the response to a pull.

    :raises CodecError: it cannot be read, or has no offset to continue at
    """
    header = read_header(command, PullMessageResponse)
    if not 0 <= header.next_begin_offset < 2**63:
        raise CodecError("nextBeginOffset", 0, f"{header.next_begin_offset} is not an offset")
    return header


def select_messages(
    decoded: Decoded, delta: int, next_offset: int, offset: int, subscription: Subscription
) -> tuple[list[MessageExt], int, CodecError | None]:
    """Return the matching messages from *offset* on, the next offset, and the decoding error.

    After an error the next offset is that of the undecodable message: nothing is skipped.

    :param delta: added to the offsets (static topics: the broker's own offsets differ)
    :raises CodecError: *next_offset* is before *offset*
    """
    messages, fault = decoded
    if delta:
        for message in messages:
            message.queue_offset += delta
    if messages and messages[0].queue_offset < offset:
        # A batch stored as one record is returned whole, also for an offset inside it.
        messages = [each for each in messages if each.queue_offset >= offset]
    if fault is not None:
        next_offset = messages[-1].queue_offset + 1 if messages else offset
    if next_offset < offset:
        raise CodecError("nextBeginOffset", 0, f"{next_offset} after a pull at {offset}")
    if tags := subscription.tags:  # the broker compares hashes only
        messages = [message for message in messages if message.tags in tags]
    return messages, next_offset, fault
