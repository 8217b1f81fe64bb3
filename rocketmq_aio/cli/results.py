"""Results of `AdminClient` as JSON values, and their output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

from rocketmq_aio.admin.results import GroupProgress, Result, describe_message
from rocketmq_aio.admin.server_results import QueueTimeSpan
from rocketmq_aio.cli.output import Format, format_cell, print_line, show_result
from rocketmq_aio.model.message import MessageExt

SECRETS: Final = re.compile(r"(?i)password|secret|credential")


def plain(value: object) -> Any:  # noqa: ANN401 - JSON values
    """Return a result as JSON values."""
    if isinstance(value, Result):
        return _without_secrets(value.to_dict())
    if isinstance(value, MessageExt):
        return describe_message(value)
    if isinstance(value, Mapping):
        if _holds_results(value):
            return [
                {"server": str(key), **row} for key, each in value.items() for row in _rows(each)
            ]
        return _without_secrets({str(key): plain(each) for key, each in value.items()})
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.name
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def is_empty(value: object) -> bool:
    """Return whether a result has no entry, or only queues that a group has not consumed."""
    if isinstance(value, GroupProgress):
        return not any(each.consumer_offset > 0 for each in value.queues)
    if isinstance(value, list) and all(isinstance(each, QueueTimeSpan) for each in value):
        return not any(each.consume_time_stamp > 0 for each in value)
    if isinstance(value, Result):
        nested = [v for v in msgspec.structs.asdict(value).values() if _is_collection(v)]
        return bool(nested) and not any(nested)
    if isinstance(value, Mapping):
        return all(v is None or (_is_collection(v) and not v) for v in value.values())
    return _is_collection(value) and not value


def _is_collection(value: object) -> bool:
    return isinstance(value, list | tuple | Mapping)


def _holds_results(value: object) -> bool:
    """Return whether *value* is a result, or a list or mapping of results, also nested.

    Lists may be empty, and so may some of several mappings.
    """
    if isinstance(value, Mapping):
        filled = [each for each in value.values() if each != {}]
        return bool(filled) and all(map(_holds_results, filled))
    if isinstance(value, list | tuple):
        return all(isinstance(each, Result) for each in value)
    return isinstance(value, Result)


def _rows(value: object) -> Iterator[dict[str, Any]]:
    """Yield the rows of results; keys of mappings are the column ``name``."""
    if isinstance(value, Mapping):
        yield from (
            {"name": str(name), **row} for name, each in value.items() for row in _rows(each)
        )
    elif isinstance(value, list | tuple):
        yield from map(plain, value)
    else:
        yield plain(value)


def expand(rows: Sequence[Mapping[str, Any]], field: str) -> list[dict[str, Any]]:
    """Return a row for each entry of the lists in *field*, with the other fields."""
    return [
        {**{name: each for name, each in row.items() if name != field}, **entry}
        for row in rows
        for entry in row[field]
    ]


def _without_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """Return *values* without passwords, which brokers send with users and settings."""
    return {k: "***" if each and SECRETS.search(k) else each for k, each in values.items()}


def as_list(value: object) -> list[Any]:
    """Return the rows of a list, or of tables of names and values by server."""
    if not isinstance(value, Mapping):
        return list(value) if isinstance(value, list | tuple) else [value]
    return [
        {"server": server, "name": name, "value": each}
        for server, table in value.items()
        for name, each in sorted(table.items())
    ]


def show(value: object, kind: Format, columns: Sequence[str] = ()) -> None:
    """Print a result; a table of a value with lists has its simple fields in the first line."""
    lists = _lists(value, may_be_empty=bool(columns)) if isinstance(value, Mapping) else {}
    if kind in (Format.JSON, Format.YAML) or not lists:
        show_result(value, kind, columns)
        return
    assert isinstance(value, Mapping)
    if kind is Format.CSV:
        rows = next(iter(lists.values()))
        if len(lists) > 1:
            columns = ("name", *columns) if columns else ()
            rows = [{"name": name, **row} for name, each in lists.items() for row in each]
        show_result(rows, kind, columns)
        return
    simple = [
        f"{name}: {format_cell(each)}"
        for name, each in value.items()
        if not isinstance(each, list | tuple | Mapping)
    ]
    if simple:
        print_line("  ".join(simple))
    for name, rows in lists.items():
        if len(lists) > 1:
            print_line(f"\n{name}:")
        show_result(rows, kind, columns if len(lists) == 1 else ())


def _lists(value: Mapping[str, Any], *, may_be_empty: bool) -> dict[str, Any]:
    return {
        name: each
        for name, each in value.items()
        if isinstance(each, list | tuple)
        and (isinstance(each[0], Mapping) if each else may_be_empty)
    }
