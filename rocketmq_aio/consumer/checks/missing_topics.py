"""Missing topics: reports subscribed topics that no name server knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

import anyio

from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import TopicFound, TopicMissing
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.names import RETRY_PREFIX, is_internal_topic
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.namespaces import names_inside
from rocketmq_aio.protocol.requests.admin import GetAllTopics, TopicList

logger = get_logger(__name__)

LIST_SECONDS: Final = 3.0  # for the list of topics; then the event has no nearest name
LEAST_LIKENESS: Final = 0.7  # of a nearest name, by `SequenceMatcher.ratio`
NAMES_AT_ONCE: Final = 100  # compared in one step: a cluster can have 50 000 topics


class MissingTopics:
    """Publishes `TopicMissing` once per missing topic, and `TopicFound` when it appears."""

    def __init__(self, context: ConsumerContext[object]) -> None:
        self._instance = context.instance
        self._group = context.group
        self._tasks = context.tasks
        self._subscriptions = context.subscriptions
        self._publish = context.publish
        self._outages: dict[str, _Outage] = {}

    def check(self, topic: str) -> None:
        """Report *topic* if it is missing, or found again; called when a route changes."""
        # Brokers create the retry topic after the first heartbeat of the group.
        if topic not in self._subscriptions or topic.startswith(RETRY_PREFIX):
            return
        routes = self._instance.routes
        if routes.known(topic) is not None:
            outage = self._outages.pop(topic, None)
            if outage is not None and outage.reported:
                logger.info("topic_found", group=self._group, topic=topic)
                self._publish(TopicFound(topic=topic))
        elif routes.is_gone(topic) and topic not in self._outages:
            outage = self._outages[topic] = _Outage()
            self._tasks.spawn(self._report, topic, outage, name=f"missing-{topic}")

    def forget(self, topic: str) -> None:
        self._outages.pop(topic, None)

    async def _report(self, topic: str, outage: _Outage) -> None:
        nearest = await nearest_name(topic, await self._names())
        if self._outages.get(topic) is not outage:  # found or unsubscribed meanwhile
            return
        outage.reported = True
        servers = tuple(sorted(self._instance.name_servers.addresses))
        where = {"group": self._group, "topic": topic, "namesrv": ";".join(servers)}
        logger.warning("topic_missing", **where, nearest=nearest)
        self._publish(TopicMissing(topic=topic, namesrv=servers, nearest=nearest))

    async def _names(self) -> set[str]:
        """Return the names of all topics; empty if they cannot be listed."""
        names: set[str] = set()
        try:
            with anyio.move_on_after(LIST_SECONDS):
                for response in await self._instance.name_servers.request_all(GetAllTopics()):
                    names.update(read_body(response.body, TopicList).topic_list)
        except RocketMQError as error:  # only the hint is missing
            logger.debug("topics_not_listed", reason=str(error))
        return names_inside(self._instance.remoting.namespace, names)


class _Outage:
    def __init__(self) -> None:
        self.reported = False


async def nearest_name(wanted: str, names: Iterable[str]) -> str | None:
    """Return the topic name most similar to *wanted*, None if none is similar enough."""
    matcher: SequenceMatcher[str] = SequenceMatcher(autojunk=False)
    matcher.set_seq2(_folded(wanted))
    nearest, likeness = None, LEAST_LIKENESS
    for number, name in enumerate(names, 1):
        if number % NAMES_AT_ONCE == 0:
            await asyncio.sleep(0)
        if name == wanted or is_internal_topic(name):
            continue
        matcher.set_seq1(_folded(name))
        # From cheap to exact: each is an upper bound of the next.
        for measure in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio):
            if (ratio := measure()) < likeness:
                break
        else:
            if ratio > likeness or nearest is None or name < nearest:
                nearest, likeness = name, ratio
    return nearest


def _folded(name: str) -> str:
    return name.casefold().replace("_", "-")
