"""Parameters of methods as arguments and options of commands."""

from __future__ import annotations

import getpass
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from rocketmq_aio.cli.arguments import argument, option
from rocketmq_aio.cli.completion import complete_brokers, complete_groups, complete_topics
from rocketmq_aio.cli.stop_flag import interruptible
from rocketmq_aio.config.arguments import checked_argument
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.timestamps import is_millis
from rocketmq_aio.model.values import MessageQueue

SIMPLE: Final = (str, int, float, bool)
COMPLETED: Final = {
    "topic": complete_topics,
    **dict.fromkeys(("group", "source", "target"), complete_groups),
    **dict.fromkeys(("broker", "brokers", "broker_name"), complete_brokers),
}
SECRET: Final = frozenset({"password", "secret_key"})
SECRET_VARIABLE: Final = "RMQ_NEW_SECRET"
TEXTS: Final = {  # of parameters that docstrings do not describe
    "access_key": "Name of the account.",
    "actions": "Pub, Sub, Create, Update, Delete, Get, List or All; several.",
    "address": "host:port of a server.",
    "addresses": "Addresses; several.",
    "admin": "The account may do everything.",
    "attributes": "NAME=VALUE of brokers from 5.0; NAME= removes one; repeatable.",
    "begin": "Store time of the first message: a time with zone, or milliseconds.",
    "broadcast_enabled": "Members may broadcast.",
    "broker": "Name of a broker.",
    "broker_id": "Id of a replica.",
    "brokers": "Only these brokers; repeatable.",
    "bytes_per_second": "Limit of reads from disk.",
    "client_id": "Id of a connected client.",
    "client_ids": "Ids of clients; several.",
    "cluster": "Name of a cluster; default: all.",
    "consume_timeout_minutes": "Minutes until orderly messages are unlocked; brokers from 5.0.",
    "container": "host:port of a broker container.",
    "count": "Number of entries.",
    "decision": "Allow or Deny.",
    "default_group_permission": "Permission for other groups: PUB, SUB, PUB|SUB or DENY.",
    "default_topic_permission": "Permission for other topics: PUB, SUB, PUB|SUB or DENY.",
    "enabled": "Whether it may be used.",
    "end": "Store time after the last message: a time with zone, or milliseconds.",
    "engine": "ROCKSDB_TIMELINE or FILE_TIME_WHEEL.",
    "from_min_enabled": "Members may begin at the first message.",
    "group": "Name of the group.",
    "index": "First entry.",
    "key": "The key.",
    "kinds": "Kinds of settings; several.",
    "lite_topic": "Name of a lite topic.",
    "max_retries": "Redeliveries before a message is a dead letter.",
    "message_id": "Id that the producer gave to the message.",
    "mode": "pop or pull.",
    "namespace": "Namespace of the values, such as ORDER_TOPIC_CONFIG.",
    "notify_members": "Notify members when others come or go.",
    "offset": "The offset.",
    "offset_message_id": "Id that contains the place of the message.",
    "order": "Name servers store the queues of each broker.",
    "orderly": "Members consume in order; brokers from 5.0.",
    "parent": "Topic of the type LITE.",
    "part": "Only names that contain it.",
    "policy_type": "Custom or Default.",
    "queue": "TOPIC/BROKER/ID.",
    "queues": "Number of read and of write queues on each broker.",
    "random": "Read without reading ahead.",
    "read_queues": "Queues that consumers use.",
    "replicas": "Also the replicas of the masters.",
    "resource": "Such as Topic:orders or Group:billing; default: all.",
    "resource_part": "Only resources that contain it.",
    "resources": "Such as Topic:orders or Group:billing; several.",
    "retry_queues": "Queues of the retry topic.",
    "settings": "NAME=VALUE; several.",
    "since_millis": "Only messages stored since, in milliseconds.",
    "size": "Bytes of a body.",
    "source": "Name of the one to copy from.",
    "source_ips": "Addresses from which it applies; several.",
    "subject": "Such as User:app.",
    "subject_part": "Only subjects that contain it.",
    "subjects": "Such as User:app; several; default: all.",
    "tag": "The tag.",
    "target": "Name of the one to copy to.",
    "targets": "Names of brokers to copy to; repeatable.",
    "topic": "Name of the topic.",
    "trace_topic": "Topic of the trace records.",
    "user_type": "Super or Normal.",
    "username": "Name of the user.",
    "usernames": "Names of users; default: all.",
    "value": "The value.",
    "write_queues": "Queues that producers use.",
}
SECRET_HELP: Final = f"File with it; default: {SECRET_VARIABLE}, or a prompt if it is needed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter, its annotation, the type of its text, and the function that makes its value."""

    name: str
    hint: Any
    kind: Any
    value: Callable[[Any], Any]
    help: str
    positional: bool = False
    default: Any = None

    def read(self, arguments: object) -> Any:  # noqa: ANN401
        """Return the value of the text in *arguments*, None if it is not given.

        :raises ConfigError: the text has no value, or one that the method would reject
        """
        try:
            value = self.value(getattr(arguments, f"p_{self.name}"))
        except ConfigError as error:
            raise ConfigError(self.name, error.value, error.reason) from error
        if value is None or value is self.default:
            return None
        # Not only in the method, which runs after the confirmation.
        return value if value == "" else checked_argument(self.name, value, self.hint)

    def field(self) -> Any:  # noqa: ANN401 - of a dataclass
        """Return the field of the option or argument."""
        about = {"complete": done} if (done := COMPLETED.get(self.name)) else {}
        if self.positional:
            return argument(self.help, self.name.upper(), self.default, **about)
        names = f"--{self.name.replace('_', '-')}"
        if self.name in SECRET:
            names = f"{names}-file"
        elif self.kind == bool | None or (self.kind is bool and self.default is MISSING):
            names = f"{names}/--no-{names[2:]}"
        return option(self.help, names, default=self.default, **about)


def parameters(method: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of *method* that can be given as text; required ones have to be."""
    hints, texts = get_type_hints(method, include_extras=True), _texts(method)
    made: list[Parameter | None] = []
    for each in inspect.signature(method).parameters.values():
        name, hint = each.name, hints[each.name]
        is_required = each.default is each.empty
        if each.kind is each.VAR_KEYWORD:
            (table,) = get_args(hint)
            made += [_parameter(key, kind) for key, kind in get_type_hints(table).items()]
        elif name in SECRET:
            made.append(_secret(name, is_required=is_required))
        else:
            made.append(
                _parameter(
                    name,
                    types.GenericAlias(list, hint) if each.kind is each.VAR_POSITIONAL else hint,
                    help=texts.get(name, ""),
                    default=MISSING if is_required else each.default,
                    positional=each.kind is not each.KEYWORD_ONLY,
                )
            )
    return _one_list([each for each in made if each is not None])


def _parameter(
    name: str,
    hint: Any,  # noqa: ANN401
    *,
    help: str = "",  # noqa: A002 - as in Parameter
    default: Any = None,  # noqa: ANN401
    positional: bool = False,
) -> Parameter | None:
    """Return the parameter; None if it has no text and can be left out."""
    if (converter := _converter(hint)) is None:
        assert default is not MISSING, name
        return None
    kind, value = converter
    if default is not MISSING:
        if kind == list[str]:
            default = ()
        elif not (kind is bool and default is False):  # --no-x; None keeps what is there
            kind, default = kind | None, None
    return Parameter(
        name=name,
        hint=hint,
        kind=kind,
        value=value,
        help=help or TEXTS.get(name) or _choices(hint),
        positional=positional and kind not in (bool, bool | None),
        default=default,
    )


def _one_list(made: list[Parameter]) -> list[Parameter]:
    """Make options of lists that are positional, except the last parameter."""
    last = [each for each in made if each.positional][-1:]
    return [
        replace(each, positional=False)
        if each.positional and each.kind == list[str] and each not in last
        else each
        for each in made
    ]


def _secret(name: str, *, is_required: bool) -> Parameter:
    """Return the option of a file: other users of the machine can see command lines."""
    return Parameter(
        name=name,
        hint=str,
        kind=str | None,
        value=lambda file: read_secret(name, file, is_required=is_required),
        help=SECRET_HELP,
    )


def read_secret(name: str, file: str | None, *, is_required: bool) -> str | None:
    """Return the secret of *file*, ``RMQ_NEW_SECRET`` or a prompt; None: it is not needed.

    :raises ConfigError: it is needed, and nowhere
    """
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            raise ConfigError(name, file, f"cannot be read ({type(error).__name__})") from None
    if secret := os.environ.get(SECRET_VARIABLE):
        return secret
    if not is_required:
        return None
    if not sys.stdin.isatty():
        option_name = f"--{name.replace('_', '-')}-file"
        raise ConfigError(option_name, None, f"is needed, or {SECRET_VARIABLE}")
    with interruptible():
        return getpass.getpass(f"New {name.replace('_', ' ')}: ")


def _choices(hint: Any) -> str:  # noqa: ANN401
    return f"One of {', '.join(map(str, get_args(hint)))}." if get_origin(hint) is Literal else ""


def _texts(method: Callable[..., Any]) -> dict[str, str]:
    doc = inspect.getdoc(method) or ""
    found = re.findall(r"^:param (\w+): (.+?)(?=^:|\Z)", doc, re.MULTILINE | re.DOTALL)
    return {name: _sentence(" ".join(text.split())) for name, text in found}


def _sentence(text: str) -> str:
    text = text.replace("``", "").replace("`", "")
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _converter(hint: Any) -> tuple[Any, Callable[[Any], Any]] | None:  # noqa: ANN401, C901
    """Return the type of the text, and the function that converts it; None: it has no text."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [each for each in inner if each is not type(None)]
        if len(others) == 1:
            return _converter(others[0])
        if datetime in others:
            return str, parse_target
        return next(filter(None, map(_converter, others)), None)
    if hint in SIMPLE:
        return hint, _same
    if origin is Literal:
        return type(inner[0]), _same
    if hint is datetime:
        return str, parse_time
    if hint is MessageQueue:
        return str, parse_queue
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_converter(inner[1]) if str in inner[:1] else None
    if isinstance(origin, type) and issubclass(origin, Iterable):
        values = _converter(inner[0]) if inner else (str, _same)
        if values is None or values[0] not in (str, int):
            return None
        make = values[1] if values[0] is str else _parse_number
        return list[str], lambda texts: [make(each) for each in texts] or None
    return None


def _mapping_converter(value: Any) -> tuple[Any, Callable[[Any], Any]]:  # noqa: ANN401
    """Return the converter of pairs; without a value a pair removes a name, if None can."""

    def read(name: str, text: str | None) -> object:
        if value is not int:
            return text or "" if value is str else text
        if text is None or not text.isdecimal():
            raise ConfigError(name, text, f"expected a number for {name}")
        return int(text)

    def convert(texts: Sequence[str]) -> dict[str, object] | None:
        return {name: read(name, each) for name, each in (parse_pairs(texts) or {}).items()} or None

    return list[str], convert


def _parse_number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError("number", text, "expected a whole number")
    return int(text)


def _same(value: Any) -> Any:  # noqa: ANN401
    return value


def parse_time(text: str | None) -> datetime | None:
    """Return the time of ISO 8601 with a zone, or of milliseconds since 1970.

    :raises ConfigError: *text* is neither, or a number of milliseconds that no message has
    """
    if text is None:
        return None
    when = None
    with suppress(ValueError, OverflowError, OSError):  # no such time, or beyond all years
        if text.isdecimal():
            when = datetime.fromtimestamp(int(text) / 1000, UTC)
        else:
            when = datetime.fromisoformat(text)
    if when is None or when.tzinfo is None:
        reason = "expected a time with zone such as 2026-03-01T00:00:00Z, or milliseconds"
        raise ConfigError("time", text, reason)
    if text.isdecimal() and not is_millis(int(text)):
        reason = "expected a time with zone, or milliseconds since 1970, which have 13 digits"
        raise ConfigError("time", text, reason)
    return when


def parse_target(text: str | None) -> str | datetime | None:
    """Return "earliest", "latest" or a time; raise `ConfigError` for others."""
    if text in ("earliest", "latest"):
        return text
    try:
        return parse_time(text)
    except ConfigError as error:
        reason = f"expected earliest, latest, {error.reason.removeprefix('expected ')}"
        raise ConfigError("time", text, reason) from None


def parse_queue(text: str | None) -> MessageQueue | None:
    """Return the queue of ``TOPIC/BROKER/ID``; raise `ConfigError` for another form."""
    if text is None:
        return None
    topic, _, rest = text.partition("/")
    broker, _, number = rest.rpartition("/")
    if not topic or not broker or not number.isdecimal():
        raise ConfigError("queue", text, "expected TOPIC/BROKER/ID")
    return MessageQueue(topic, broker, int(number))


def parse_pairs(texts: Sequence[str], setting: str = "pairs") -> dict[str, str | None] | None:
    """Return the names and values of ``NAME=VALUE`` texts; ``NAME=`` is None, which removes.

    :raises ConfigError: a text has another form, or a name is given twice; it names *setting*
    """
    pairs: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(setting, text, "expected NAME=VALUE")
        if name in pairs:
            raise ConfigError(setting, text, f"{name} is given twice")
        pairs[name] = value or None
    return pairs or None
