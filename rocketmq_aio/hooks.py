"""Hooks: code of the application that runs around the client's own work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rocketmq_aio.message import MessageExt, MessageQueue


@runtime_checkable
class RPCHook(Protocol):
    """Sees every request before it is signed and written, and every answer.

    Hooks run in order.  One that raises is logged and changes nothing.  They run on the event
    loop for every request, and switch off the client's prepared frames: keep them short.
    """

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        """May add to or change *ext_fields* of the request."""

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        """Sees the answer to request *code*."""


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """One run of a handler; the same object comes before and after it.

    The last four are known afterwards.  *error* is what the handler raised, *seconds* how long it
    ran.  *notes* is for hooks alone: a span that one began, for example.
    """

    group: str
    topic: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    notes: dict[str, Any] = field(default_factory=dict)
    status: str | None = None
    error: BaseException | None = None
    seconds: float | None = None


@runtime_checkable
class ConsumeHook(Protocol):
    """Sees every batch before its handler runs, and how that ended.

    Hooks run in order, before and after, on the event loop: keep them short.  One that raises is
    logged, once per kind of failure, and changes nothing.
    """

    def before(self, context: ConsumeContext) -> None:
        """The handler is about to run."""

    def after(self, context: ConsumeContext) -> None:
        """The handler ended, in whatever way."""


@runtime_checkable
class FilterMessageHook(Protocol):
    """Chooses among the messages that were pulled; what it leaves out counts as done.

    Runs on the event loop; one that raises is logged as a `ConsumeHook` is, and leaves none out.
    """

    def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
        """Return those of *messages*, all of one queue, that a handler is to see."""
        ...
