"""``rmq metadata``: topics and groups with their settings, to a file and from it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rocketmq_aio.admin.metadata import Metadata
from rocketmq_aio.admin.servers import before_change
from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.confirm import ChangeArguments, changing
from rocketmq_aio.cli.connection import ClientArguments, ReadArguments
from rocketmq_aio.cli.output import counted, print_note, result_file, show_result
from rocketmq_aio.cli.parameters import parse_pairs
from rocketmq_aio.errors import ConfigError

app = Group("metadata", "Topics and groups with their settings.")
NOTHING: Final[dict[str, object]] = {"topics": [], "groups": [], "order": {}, "static": {}}


@options
class ExportArguments(ClientArguments):
    cluster: str | None = option("Name of a cluster; default: all.")
    file: Path | None = option("File to create; default: standard output.", "--file", "-f")


@options
class RestoreArguments(ChangeArguments, ReadArguments):
    file: Path = argument("File of rmq metadata export, or a part of one.", "FILE")
    brokers: list[str] = option("OLD=NEW: another name of a broker; repeatable.", default=())


@command(app, "export", ExportArguments, "rmq metadata export --file cluster.json")
async def _export(arguments: ExportArguments) -> int:
    """Write all topics and groups as JSON, each with its settings on each broker.

    If a broker cannot be read, nothing is written, and the exit code is 3.
    """
    async with arguments.admin() as admin:
        metadata = await before_change(admin.metadata.export(cluster=arguments.cluster))
    text = msgspec.json.format(msgspec.json.encode(metadata.to_dict())).decode()
    with result_file(arguments.file) as file:
        file.write(f"{text}\n")
    if arguments.file is not None:
        print_note(f"{_count(metadata)} written")
    return 0


@command(
    app,
    "restore",
    RestoreArguments,
    "rmq metadata restore cluster.json --dry-run\n"
    "rmq metadata restore cluster.json --brokers broker-a=broker-x --yes",
)
async def _restore(arguments: RestoreArguments) -> int:
    """Create or change all topics and groups of a file, each on its broker.

    Others stay as they are. A broker gets all its topics in one request, and all its groups.
    Before it asks, and with --dry-run, it shows those that the brokers do not have like this.
    """
    try:
        values = msgspec.json.decode(arguments.file.read_bytes(), type=dict)
    except OSError as error:
        raise ConfigError("FILE", str(arguments.file), str(error.strerror)) from None
    except msgspec.DecodeError as error:
        raise ConfigError("FILE", str(arguments.file), f"is no object in JSON: {error}") from None
    if unknown := values.keys() - NOTHING.keys():
        reason = f"has {', '.join(sorted(unknown))}: expected topics, groups, order and static"
        raise ConfigError("FILE", str(arguments.file), reason)
    metadata = Metadata.from_dict(NOTHING | values)
    brokers: dict[str, str] = {}
    for old, new in (parse_pairs(arguments.brokers, "brokers") or {}).items():
        if new is None:
            raise ConfigError("brokers", f"{old}=", "expected OLD=NEW")
        brokers[old] = new
    async with arguments.admin() as admin:
        if not arguments.yes:
            metadata = await before_change(admin.metadata.difference(metadata, brokers=brokers))
            brokers = {}
            show_result(_rows(metadata), arguments.output, ("kind", "name", "broker"))
        if not arguments.confirm(f"create or change {_count(metadata)}"):
            return 0
        with changing():
            await admin.metadata.restore(metadata, brokers=brokers)
    print_note("done")
    return 0


def _rows(metadata: Metadata) -> list[dict[str, str]]:
    found = [("topic", each.topic, each.broker_name) for each in metadata.topics]
    found += [("group", each.group, each.broker_name) for each in metadata.groups]
    found += [("order", topic, name) for topic, some in metadata.order.items() for name in some]
    found += [("static topic", topic, "all") for topic in metadata.static]
    return [dict(zip(("kind", "name", "broker"), each, strict=True)) for each in found]


def _count(metadata: Metadata) -> str:
    topics = {each.topic for each in metadata.topics} | metadata.static.keys()
    groups = {each.group for each in metadata.groups}
    order = f", and the order of {counted(len(metadata.order), 'topic')}" if metadata.order else ""
    return f"{counted(len(topics), 'topic')} and {counted(len(groups), 'group')}{order}"
