"""Pull requests: one header and one prepared frame for all kinds of pulls."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import queue_fields
from rocketmq_aio.protocol.requests.pull import LitePullMessage, PullMessage
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.protocol.templates import RequestTemplate
from rocketmq_aio.remoting.connection import OnLate
from rocketmq_aio.remoting.remoting_client import RemotingClient

# Pulls never carry a commit: brokers process requests in any order, so it could overwrite a later
# commit that is already confirmed (seen on live 4.9.7 and 5.5.0 brokers).
NO_COMMIT: Final = 0


class PullRequest:
    """Pulls of one queue with one expression: everything but the offset is encoded once.

    :param lite: pull for a lite pull consumer or reader
    :param own_code: send LITE_PULL_MESSAGE instead of PULL_MESSAGE; brokers from 5.0 know it
    :param wait_seconds: how long the broker may hold the request at the end of the queue
    :param on_late: called with a response that arrives after the pull was abandoned
    """

    __slots__ = ("_header", "_on_late", "_template", "own_code", "subscription")

    def __init__(
        self,
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
        self._on_late = on_late
        self.subscription = subscription
        self.own_code = own_code
        flags = PULL_SUBSCRIPTION
        if wait_seconds:
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
        self, remoting: RemotingClient, address: str, offset: int, timeout: float
    ) -> Coroutine[Any, Any, Command]:
        """Pull from *offset* on; a plain function, which adds no coroutine to the call."""
        template = self._template
        if not remoting.takes_prepared:
            header = msgspec.structs.replace(self._header, queue_offset=offset)
            return remoting.request(address, header, timeout=timeout, on_late=self._on_late)

        def frame(opaque: int) -> tuple[bytes, bytes]:
            return template.frame(opaque, str(offset)), b""

        return remoting.exchange(address, template.code, frame, timeout, self._on_late)
