"""Registration of request handlers: methods of the parts of a server.

The decorators say which requests a method handles and what it takes of them; what it returns
becomes the response.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import getmembers, isawaitable, iscoroutinefunction, isfunction
from typing import Any, Final, TypeVar, cast

import msgspec

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Close, Handler, HandlerResult, Outcome, Raw, Response
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import Header, RequestHeader, read_header, to_ext_fields

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
Method = TypeVar("Method", bound=Callable[..., object])
Handlers = dict[int, Handler]
Arguments = Callable[[Command], tuple[object, ...]]
Registration = tuple[tuple[int, ...], int | None, Callable[[Callable[..., Any]], Handler]]
# Codes, version and what makes the handler, by the function of the method.
_registered: Final[defaultdict[object, list[Registration]]] = defaultdict(list)


def handles(*codes: int, version: int | None = None) -> Callable[[Method], Method]:
    """Register a method that takes command and connection, and returns the outcome.

    :param version: 4 or 5, for requests that only brokers of this major version know
    """
    return _registering(codes, version, lambda method: method)


def answers(*codes: int, version: int | None = None) -> Callable[[Method], Method]:
    """Register a method without arguments; it returns a result as for `reads`."""
    return _registering(codes, version, partial(_responding, lambda _: ()))


def reads(
    kind: type[T], *codes: int, version: int | None = None
) -> Callable[[Callable[[S, T], R]], Callable[[S, T], R]]:
    """Register a method that takes the header of the request as *kind*, or its JSON body.

    With `Command` as *kind* it takes the request as it is.

    A `Header` that it returns becomes the ext fields of the response, None an empty response; an
    outcome, or an awaitable of one, stays what it is, and anything else becomes the JSON body.

    :param codes: default: the code of the header
    """
    header = kind if isinstance(kind, type) and issubclass(kind, Header) else None
    if not codes:
        assert header is not None
        assert issubclass(header, RequestHeader), "a code is needed"
        codes = (header.code,)

    def arguments(command: Command) -> tuple[object, ...]:
        if kind is Command:
            return (command,)
        if header is not None:
            return (check_numbers(read_header(command, header)),)
        return (check_numbers(read_body(command.body, kind)),)

    return _registering(codes, version, partial(_responding, arguments))


def check_numbers(value: T) -> T:
    """Return *value* if its numbers have 64 bits; CodecError otherwise, as Java cannot read it.

    A snapshot cannot store larger ones.
    """
    try:
        msgspec.msgpack.encode(value)
    except OverflowError as error:
        raise CodecError(type(value).__name__, 0, "a number has more than 64 bits") from error
    return value


def _registering(
    codes: tuple[int, ...], version: int | None, make: Callable[[Callable[..., Any]], Handler]
) -> Callable[[Method], Method]:
    def register(method: Method) -> Method:
        _registered[method].append((codes, version, make))
        return method

    return register


def handlers_of(version: int, *parts: object) -> Handlers:
    """Return the handlers among the methods of *parts* by request code.

    :param version: major version of the server
    """
    found: Handlers = {}
    for part in parts:
        for name, function in getmembers(type(part), isfunction):
            for codes, only, make in _registered.get(function, ()):
                if only in (None, version):
                    found |= dict.fromkeys(codes, make(getattr(part, name)))
    return found


def _responding(arguments: Arguments, method: Callable[..., object]) -> Handler:
    def handler(command: Command, _connection: ServerConnection) -> HandlerResult:
        result = method(*arguments(command))
        if isinstance(result, Response):
            return result
        return cast("Awaitable[Outcome]", result) if isawaitable(result) else _outcome(result)

    async def later(command: Command, _connection: ServerConnection) -> Outcome:
        return _outcome(await cast("Awaitable[object]", method(*arguments(command))))

    return later if iscoroutinefunction(method) else handler


def _outcome(result: object) -> Outcome:
    if isinstance(result, Response | Raw | Close):
        return result
    if result is None:
        return Response()
    if isinstance(result, Header):
        return Response(ext=to_ext_fields(result))
    return Response(body=msgspec.json.encode(result))
