"""Hooks: code of the application that runs around the client's own work."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Protocol, runtime_checkable


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
