"""Names that the servers do not have, or that nothing can be sent to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from rocketmq_aio.errors import (
    BrokerError,
    ConfigError,
    NotSupportedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX, send_fault

if TYPE_CHECKING:
    from rocketmq_aio.admin.client import AdminClient
    from rocketmq_aio.cli.connection import ClientArguments

SUGGESTIONS: Final = 3
LISTS: Final = {  # the command that lists the names of a kind
    "topic": "rmq topic list --internal",
    "group": "rmq group list",
    "user": "rmq user list",
    "subject": "rmq acl list-policies",
}


class NotFoundError(Exception):
    """The servers have nothing of what was asked for."""


def check_target(setting: str, topic: str) -> None:
    """Raise `ConfigError` if nothing can be sent to *topic*."""
    if (fault := send_fault(topic)) is not None:
        raise ConfigError(setting, topic, fault)


def no_such(kind: str, setting: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not *known*."""
    from difflib import get_close_matches  # not needed by commands that work

    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, SUGGESTIONS)
    reason = f"there is no such {kind}"
    if near:
        reason += f": did you mean {' or '.join(by_lower[each] for each in near)}?"
    return ConfigError(setting, name, f"{reason} ({LISTS[kind]} shows all)")


async def check_known(admin: AdminClient, kind: str, setting: str, name: str) -> None:
    """Raise `ConfigError` if the servers have no *kind* of this name.

    Returns if that cannot be determined: a server does not respond, or the account may not list
    names.  A deleted group whose offsets were kept is known.

    :raises BrokerError: the brokers have no users and policies
    """
    try:
        known = await _known(admin, kind)
        if name in known:
            return
        if kind == "group" and (await admin.groups.progress(name)).queues:
            return
    except RocketMQError as error:
        if kind in ("user", "subject") and type(error) in (BrokerError, NotSupportedError):
            raise
        return
    raise no_such(kind, setting, name, known)


async def has_topics(admin: AdminClient, group: str) -> bool:
    """Return whether a group, maybe a deleted one, has a retry or a dead-letter topic."""
    topics = await admin.topics.list(internal=True)
    return not {RETRY_PREFIX + group, DLQ_PREFIX + group}.isdisjoint(topics)


async def _known(admin: AdminClient, kind: str) -> set[str]:
    if kind == "topic":
        return set(await admin.topics.list(internal=True))
    if kind == "group":
        return set(await admin.groups.list(internal=True))
    if kind == "user":
        users = (await admin.acl.list_users()).values()
        return {user.username for each in users for user in each}
    policies = (await admin.acl.list_policies()).values()
    return {subject.subject for each in policies for subject in each}


@asynccontextmanager
async def topics_checked(arguments: ClientArguments) -> AsyncGenerator[None]:
    """Turn the error of a block for a topic that does not exist into one with similar names."""
    try:
        yield
    except RouteNotFoundError as error:
        async with arguments.admin() as admin:
            await check_known(admin, "topic", "TOPIC", error.topic)
        raise
