"""Nouns of ``rmq``: their verbs are made from the methods of the parts of `AdminClient`.

A public method is a verb: its parameters are arguments and options, its docstring is the help.
Methods that `CHANGING` names, also by their first word, change something: they ask before they run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import make_dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

import click

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.admin.servers import before_change, rehearse
from rocketmq_aio.cli.arguments import Group, command, option, options
from rocketmq_aio.cli.confirm import ChangeArguments, changing
from rocketmq_aio.cli.connection import ReadArguments
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.names import NotFoundError, check_known, has_topics
from rocketmq_aio.cli.output import print_error, print_note
from rocketmq_aio.cli.parameters import SECRET, parameters
from rocketmq_aio.cli.results import as_list, expand, is_empty, plain, show
from rocketmq_aio.errors import AdminError, NotRunningError, RouteNotFoundError, SubscriptionError
from rocketmq_aio.model.values import MessageQueue


class Verb(NamedTuple):
    """Options of a command that its method does not define.

    :ivar action: phrase of the confirmation, with the names of parameters
    :ivar preview: method whose result is shown before a confirmation and by ``--dry-run``
    :ivar columns: columns of the table
    :ivar expand: field with a list whose entries become the rows
    :ivar partial: print the results of an `AdminError` of this kind (its ``of``), which have the
        form of whole ones
    :ivar missing: error for an empty result, with the names of parameters; *empty*: note
    """

    action: str = ""
    preview: str = ""
    columns: str = ""
    examples: str = ""
    expand: str = ""
    missing: str = ""
    empty: str = ""
    partial: str = ""


NOUNS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    # part of AdminClient, and its methods by verb; default: all, by their names
    "topic": ("topics", {}),
    "static-topic": ("static_topics", {}),
    "group": ("groups", {}),
    "offset": ("offsets", {}),
    "message": ("messages", {}),
    "broker": ("brokers", {}),
    "cluster": ("brokers", {"list": "list", "brokers": "cluster"}),
    "namesrv": ("name_servers", {}),
    "controller": ("controllers", {}),
    "acl": ("acl", {}),
    "user": (
        "acl",
        {
            "list": "list_users",
            "show": "user",
            "create": "create_user",
            "update": "update_user",
            "delete": "delete_user",
            "copy": "copy_users",
        },
    ),
    "lite": ("lite", {}),
}
TRACE: Final = "trace"  # `rmq message trace`, also without its noun
INTERNAL: Final = frozenset({"changes", "member_tables", "orders"})
NOT_TEXT: Final = frozenset({"put"})  # takes objects that `config` returns
RESULTS: Final = "rocketmq_aio.admin."  # modules of results
TABLES: Final = "dict[str, dict[str, str]]"
ROWS: Final = ("list[", "tuple[", TABLES)
SAFE: Final = frozenset("create send export check".split())  # they overwrite nothing
CHANGING: Final = frozenset(
    "add clean clone consume_directly copy delete dispatch elect limit put remap remove reset roll "
    "set skip switch unlimit update wipe".split()
)
NAMED: Final = {  # kinds of names by parameter
    "topic": "topic",
    "parent": "topic",
    "group": "group",
    "username": "user",
    "subject": "subject",
}
# Verbs with names that do not exist before, or that are of another kind.
NEW: Final = {
    "acl create-user": "username",
    "acl create-policy": "subject",
    "user create": "username",
    "topic create": "topic",
    "topic set-order": "topic",
    "static-topic create": "topic",
    "group create": "group",
    "group producers": "group",
}
_MESSAGES: Final = (
    "message_id queue.broker_name queue.queue_id queue_offset tags keys store_time body"
)
_OFFSETS: Final = "broker_offset consumer_offset lag in_flight last_time client_id"
_RESETS: Final = "queue.topic queue.broker_name queue.queue_id before offset how"
VERBS: Final = {
    "topic list": Verb(examples="rmq topic list --match 'order*'\nrmq topic list -o json"),
    "topic create": Verb(
        examples="rmq topic create orders --queues 16 --attributes message.type=FIFO"
    ),
    "topic update": Verb(
        "change topic {topic}",
        preview="config",
        examples="rmq topic update orders --perm R --brokers broker-b",
    ),
    "topic delete": Verb(
        "delete topic {topic} with its messages",
        preview="stats",
        examples="rmq topic delete orders --dry-run\nrmq topic delete orders",
    ),
    "topic stats": Verb(
        columns="queue.broker_name queue.queue_id min_offset max_offset count last_update",
        examples="rmq topic stats orders",
    ),
    "static-topic create": Verb(examples="rmq static-topic create orders 16"),
    "static-topic remap": Verb(
        "move queues of static topic {topic}",
        preview="queues",
        examples="rmq static-topic remap orders --brokers broker-b",
    ),
    "group create": Verb(examples="rmq group create billing --max-retries 5"),
    "group update": Verb(
        "change group {group}", preview="config", examples="rmq group update billing --no-enabled"
    ),
    "group delete": Verb(
        "delete group {group} and what it has committed",
        preview="config",
        examples="rmq group delete billing --keep-offsets",
    ),
    "group progress": Verb(
        columns=f"queue.topic queue.broker_name queue.queue_id {_OFFSETS}",
        examples="rmq group progress billing --owners",
    ),
    "offset reset": Verb(
        "reset the offsets of group {group} in topic {topic} to {to}",
        columns=_RESETS,
        examples="rmq offset reset billing orders earliest\n"
        "rmq offset reset billing orders 2026-03-01T00:00:00Z --yes",
    ),
    "offset clone": Verb(
        "copy the offsets of group {source} to group {target}",
        columns=_RESETS,
        examples="rmq offset clone billing billing-2 --topic orders",
    ),
    "message by-key": Verb(
        columns=_MESSAGES,
        examples="rmq message by-key orders 42 --begin 2026-03-01T00:00:00Z",
        missing="no message of topic {topic} has the key {key}: check --begin and --end",
        partial="servers",
    ),
    "message by-tag": Verb(
        columns=_MESSAGES,
        examples="rmq message by-tag orders paid --max-messages 5",
        missing="no message of topic {topic} has the tag {tag}: check --begin and --end",
        partial="servers",
    ),
    "message by-id": Verb(
        columns=_MESSAGES,
        missing="no message of topic {topic} has the id {message_id}: check --begin and --end",
        partial="servers",
    ),
    "message trace": Verb(
        columns="time kind group topic success cost_millis client_host state",
        examples="rmq trace 7F0000010A2B18B4AAC2...",
        missing="there are no trace records of message {message_id}: only clients with a message "
        "trace send some, indexed after a moment; --trace-topic names another topic",
        partial="servers",
    ),
    "group status": Verb(
        partial="members",
        empty="no member of group {group} is connected",
        examples="rmq group status billing --stacks -o yaml",
    ),
    "group producers": Verb(missing="no producer of group {group} is connected"),
    "broker statistics": Verb(missing="no broker has counted {name} of {key}"),
    "namesrv values": Verb(missing="no name server has values in namespace {namespace}"),
    "namesrv value": Verb(missing="no name server has a value {key} in namespace {namespace}"),
    "acl policies": Verb(missing="no broker has policies of {subject}"),
    "user show": Verb(missing="no broker has a user {username}"),
    "offset time-spans": Verb(
        columns="queue.topic queue.broker_name queue.queue_id "
        "min_time_stamp max_time_stamp consume_time_stamp delay_time"
    ),
    "offset in-memory": Verb(missing="no member of group {group} is connected"),
    "offset skip": Verb(
        "move group {group} to the end of topic {topic}",
        columns=_RESETS,
        examples="rmq offset skip billing orders",
    ),
    "broker config": Verb(
        examples="rmq broker config --brokers broker-a --match 'flush*'", partial="servers"
    ),
    "broker ha-status": Verb(partial="servers"),
    "broker epochs": Verb(partial="servers"),
    "namesrv config": Verb(partial="servers"),
    "broker update-config": Verb(
        examples="rmq broker update-config fileReservedTime=48 --brokers broker-a"
    ),
    "namesrv wipe-write-permission": Verb("take the write permission from broker {broker}"),
    "controller clean": Verb("forget replicas of broker {broker}"),
    "acl delete-policy": Verb("delete the policies of {subject}"),
    "acl create-policy": Verb(
        examples="rmq acl create-policy User:app Pub Sub --resources Topic:orders"
    ),
    "user create": Verb(examples="RMQ_NEW_SECRET=... rmq user create app"),
    "user update": Verb("change user {username}"),
    "user delete": Verb("delete user {username}", examples="rmq user delete app"),
    "broker cluster": Verb(columns="broker_name cluster addresses master"),
    "broker consume-stats": Verb(
        columns="server group queue.topic queue.broker_name queue.queue_id "
        "broker_offset consumer_offset lag last_time",
        expand="queues",
    ),
    "broker stats": Verb(examples="rmq broker stats --brokers broker-a -o yaml", partial="servers"),
}


@options
class ListArguments:
    """Options of verbs that return many rows."""

    match: str | None = option("Show rows with a text that matches, such as 'order*'.")
    skip: int = option("Rows to leave out.", default=0, min=0)
    limit: int | None = option("Rows to show at most.", min=1)


class NounGroup(Group):
    """The verbs of a noun: commands of *part*, an attribute of `AdminClient`."""

    def __init__(self, noun: str, part: object, verbs: Mapping[str, str]) -> None:
        doc = (inspect.getdoc(type(part)) or noun).partition("\n\n")[0].partition(": ``")[0]
        super().__init__(noun, f"{doc.rstrip('.')}.")
        self._noun, self._part = noun, part
        self._verbs = verbs or {name.replace("_", "-"): name for name in methods(part)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return sorted(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a verb: reading the types of all methods takes a while."""
        if cmd_name in self._verbs and cmd_name not in self.commands:
            register(self, self._noun, cmd_name, getattr(self._part, self._verbs[cmd_name]))
        return self.commands.get(cmd_name)


def methods(part: object) -> list[str]:
    """Return the public methods of which every required parameter can be given as text."""
    found = inspect.getmembers(part, inspect.iscoroutinefunction)
    hidden = INTERNAL | NOT_TEXT
    return [name for name, _ in found if not name.startswith("_") and name not in hidden]


def register(app: click.Group, noun: str, shown: str, method: Callable[..., Any]) -> None:
    """Make the command *shown* of a method."""
    verb, name = VERBS.get(f"{noun} {shown}", Verb()), method.__name__
    given = parameters(method)
    words = {name, name.partition("_")[0]}
    is_read = not words & (SAFE | CHANGING)
    is_change = bool(verb.action or words & CHANGING)
    returned = str(get_type_hints(method).get("return", ""))
    is_rows = returned.startswith("dict[") and RESULTS in returned
    if returned.startswith(TABLES) and not verb.columns:
        verb = verb._replace(columns="server name value")
    if returned == "list[str]" and not verb.columns:
        verb = verb._replace(columns="name")
    is_list = is_read and returned.startswith(ROWS)
    own: list[type] = [ChangeArguments] if is_change else [ListArguments] if is_list else []
    kind = make_dataclass(
        f"{noun}_{name}",
        [(f"p_{each.name}", each.kind, each.field()) for each in given],
        bases=(*own, ReadArguments),
        kw_only=True,
    )

    names = {**NAMED, **({"source": "group", "target": "group"} if noun == "offset" else {})}
    names.pop(NEW.get(f"{noun} {shown}", ""), None)

    def run(arguments: Any) -> Coroutine[Any, Any, int]:  # noqa: ANN401 - a kind
        values = {each.name: each.read(arguments) for each in given}
        return _call(_Call(arguments, noun, name, values, verb, names, is_rows, is_change, is_read))

    run.__doc__ = _help(method)
    command(app, shown, kind, verb.examples)(run)


def _help(method: Callable[..., Any]) -> str:
    """Return the docstring without the fields and the marks of names."""
    parts = (inspect.getdoc(method) or "").split("\n\n")
    kept = [" ".join(part.split()) for part in parts if not part.startswith(":")]
    return re.sub(r"[`*]", "", "\n\n".join(kept))


class _Call(NamedTuple):
    """A call of a method.

    :ivar names: kinds of names by parameter
    :ivar is_rows: the method returns results by server: the rows of all servers are shown
    :ivar is_change: it has to be confirmed
    :ivar is_read: it changes nothing
    """

    arguments: Any
    noun: str
    method: str
    values: Mapping[str, Any]
    verb: Verb
    names: Mapping[str, str]
    is_rows: bool
    is_change: bool
    is_read: bool

    @property
    def given(self) -> dict[str, Any]:
        """Return the values without those that are not given."""
        return {name: each for name, each in self.values.items() if each is not None}

    def name_of(self, topic: str) -> str:
        """Return the name of the argument with *topic*, which may be the topic of a queue."""
        for name, each in self.given.items():
            if each == topic or (isinstance(each, MessageQueue) and each.topic == topic):
                return name.upper()
        return "TOPIC"

    def action(self) -> str:
        """Return the phrase of the confirmation, with all values; secrets are hidden."""
        phrase = self.verb.action or self.method.replace("_", " ")
        others = [
            f"{name.replace('_', ' ')} {'***' if name in SECRET else _in_words(each)}"
            for name, each in self.given.items()
            if f"{{{name}}}" not in phrase
        ]
        rest = f": {'; '.join(others)}" if others else ""
        return f"{phrase.format_map(dict(self.values))}{rest}"

    async def check_names(self, admin: AdminClient) -> None:
        """Raise `ConfigError` for a name that the servers do not have."""
        if self.given.get("delete_topics") and await has_topics(admin, self.given["group"]):
            return  # the group may be gone: an earlier call failed to delete its topics
        for name, kind in self.names.items():
            if isinstance(value := self.given.get(name), str):
                await check_known(admin, kind, name.upper(), value)


def _in_words(value: object) -> str:
    """Return a value of an option as one text."""
    if isinstance(value, Mapping):
        value = [name if each is None else f"{name}={each}" for name, each in value.items()]
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


async def _call(call: _Call) -> int:
    async with call.arguments.admin() as admin:
        part = getattr(admin, NOUNS[call.noun][0])
        if call.is_change and not await _is_confirmed(call, admin, part):
            return ExitCode.DONE
        with nullcontext() if call.is_read else changing():
            result, failure = await _result(call, admin, getattr(part, call.method))
    shown = plain(result)
    code = _print(call, [] if call.is_rows and isinstance(shown, Mapping) else shown)
    if failure is not None:
        raise failure
    return code


async def _is_confirmed(call: _Call, admin: AdminClient, part: object) -> bool:
    # Before its first request the method raises the errors of arguments.
    with suppress(NotRunningError):
        await _bound(getattr(getattr(ADMIN, NOUNS[call.noun][0]), call.method), call.given)
    await call.check_names(admin)
    if call.arguments.dry_run or not call.arguments.yes:
        await rehearse(_bound(getattr(part, call.method), call.given))
    if call.verb.preview and not call.arguments.yes:
        subject = next(iter(call.given.values()))
        found = plain(await before_change(getattr(part, call.verb.preview)(subject)))
        verb = VERBS.get(f"{call.noun} {call.verb.preview}", Verb())
        show(found, call.arguments.output, tuple(verb.columns.split()))
    is_confirmed: bool = call.arguments.confirm(call.action())
    return is_confirmed


async def _result(
    call: _Call, admin: AdminClient, method: Callable[..., Any]
) -> tuple[object, AdminError | None]:
    """Return what `_answer` does; errors for unknown names have similar names.

    :raises NotFoundError: the result is empty
    """
    try:
        result, failure = await _answer(call, method)
    except RouteNotFoundError as error:
        if call.is_read or "topic" in call.names:  # not of a topic that was just created
            await check_known(admin, "topic", call.name_of(error.topic), error.topic)
        raise
    except SubscriptionError:
        await call.check_names(admin)
        raise
    if failure is None and call.is_read and is_empty(result):
        await call.check_names(admin)
        if call.verb.missing:
            raise NotFoundError(call.verb.missing.format_map(dict(call.values)))
    return result, failure


def _print(call: _Call, shown: Any) -> ExitCode:  # noqa: ANN401 - JSON values
    code = ExitCode.INCOMPLETE if _has_problem(shown) else ExitCode.DONE
    for name, reason in _silent(shown).items():
        print_error(f"{name}: {reason}")
        code = ExitCode.INCOMPLETE
    if call.verb.expand:
        shown = expand(shown, call.verb.expand)
    if hasattr(call.arguments, "match"):  # ListArguments
        shown = _page(as_list(shown), call.arguments)
    if not shown and call.verb.empty:
        print_note(call.verb.empty.format_map(dict(call.values)))
    if shown is None:
        print_note("done")
    else:
        show(shown, call.arguments.output, tuple(call.verb.columns.split()))
    return code


async def _answer(call: _Call, method: Callable[..., Any]) -> tuple[object, AdminError | None]:
    """Return the result, or that of the brokers that answered and the error of the others."""
    try:
        return await _bound(method, call.given), None
    except AdminError as error:
        if call.verb.partial == error.of and error.done:
            if get_origin(get_type_hints(method)["return"]) is not list:
                return error.done, error
            lists = (each if isinstance(each, list) else [each] for each in error.done.values())
            return [row for each in lists for row in each], error
        others = _of_the_others(method, call.given, error) if call.is_read else {}
        if not others:
            raise
        return await _bound(method, others), error


def _of_the_others(
    method: Callable[..., Any], given: Mapping[str, Any], error: AdminError
) -> dict[str, Any]:
    """Return the arguments that query only the brokers that answered; none if this is impossible.

    The results in *error* are parts of the answers in the form of brokers.
    """
    brokers, known = list(error.done), {each.name for each in parameters(method)}
    if not brokers or "brokers" not in known:
        return {}
    return {**given, **({"cluster": None} if "cluster" in known else {}), "brokers": brokers}


def _silent(shown: object) -> Mapping[str, str]:
    """Return the members that did not report, with the reasons."""
    found = shown.get("silent") if isinstance(shown, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _has_problem(rows: object) -> bool:
    """Return whether a row is about a server that did not answer."""
    return isinstance(rows, list) and any(
        isinstance(row, Mapping) and row.get("problem") for row in rows
    )


async def _bound(method: Callable[..., Any], given: Mapping[str, Any]) -> object:
    """Call the method; the values of a variadic parameter are given in order."""
    known = inspect.signature(method).parameters.values()
    variadic = [each.name for each in known if each.kind is each.VAR_POSITIONAL]
    values = [value for name in variadic for value in given.get(name, ())]
    result: object = await method(
        *values, **{key: each for key, each in given.items() if key not in variadic}
    )
    return result


def _page(rows: list[Any], arguments: ListArguments) -> list[Any]:
    found = [row for row in rows if arguments.match is None or _matches(row, arguments.match)]
    end = None if arguments.limit is None else arguments.skip + arguments.limit
    shown = found[arguments.skip : end]
    if len(shown) < len(found):
        print_note(f"{len(shown)} of {len(found)} rows, after the first {arguments.skip}")
    return shown


def _matches(value: object, pattern: str) -> bool:
    """Return whether a text in *value* matches, also a nested one, such as that of a queue."""
    if isinstance(value, str):
        return fnmatchcase(value, pattern)
    values = value.values() if isinstance(value, Mapping) else value
    return isinstance(values, Iterable) and any(_matches(each, pattern) for each in values)


ADMIN: Final = AdminClient(namesrv="127.0.0.1:1")  # not started
apps: Final = {
    noun: NounGroup(noun, getattr(ADMIN, part), verbs) for noun, (part, verbs) in NOUNS.items()
}
apps[TRACE] = NounGroup("message", ADMIN.messages, {TRACE: TRACE})
