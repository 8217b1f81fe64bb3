"""Raw pulls: requests by queue and offset whose responses stay bytes."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final, NamedTuple

from rocketmq_aio.consumer.pull.result import STATUSES, PullStatus, RawPull, read_raw
from rocketmq_aio.consumer.pull_loop.pull_request import PullRequest
from rocketmq_aio.errors import CodecError, NotConnectedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import GetTopicConfig
from rocketmq_aio.protocol.requests.operations import MappedTopicBody, TopicMapping
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.protocol.subscription import Subscription

MAX_REQUESTS: Final = 4096
MAX_CHECKED: Final = 1024
MAX_OLD: Final = 1024
RECENT_SECONDS: Final = 600.0  # after the last request; then the route is fetched when needed
# Answers of brokers that do not know LITE_PULL_MESSAGE, or may not serve it.
NO_LITE: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)

Kind = tuple[MessageQueue, Subscription, int, float, int | None]


class TopicSettings(NamedTuple):
    """Settings of a topic that make gaps in the offsets of a queue.

    :ivar is_compacted: the broker keeps only the last message of each key (5.x)
    :ivar part_starts: the offsets at which the queue, if it is logical, began on each broker
    """

    is_compacted: bool = False
    part_starts: frozenset[int] = frozenset()


class RawPulls:
    """Pulls by offset for callers that keep their own progress; not a member of the group.

    Nothing is committed or retried here.  The caller registers it with the instance, which
    keeps the routes of its topics fresh.

    :param lite: send LITE_PULL_MESSAGE, which 5.x brokers serve with threads of their own, to all
        brokers that know it
    """

    def __init__(self, instance: MQClientInstance, group: str, *, lite: bool = True) -> None:
        self._instance = instance
        self._group = group
        self._lite = lite
        self._topics: dict[str, float] = {}  # when each was last used, in monotonic seconds
        self._old: set[str] = set()  # addresses that do not serve LITE_PULL_MESSAGE
        self._replicas: dict[MessageQueue, int] = {}  # broker ids that responses suggested
        self._requests: dict[tuple[Kind, bool], PullRequest] = {}
        self._checked: dict[tuple[str, str], None] = {}  # SQL expressions that a broker accepted

    @property
    def group(self) -> str:
        return self._group

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int,
        wanted: Subscription,
        *,
        timeout: float | None = None,
        suggested: bool = False,
        wait_seconds: float = 0.0,
        max_bytes: int | None = None,
    ) -> RawPull:
        """Return the broker's response.

        :param timeout: default ``request_timeout_seconds``, or what *wait_seconds* need
        :param suggested: pull from the replica that the last response suggested, maybe a slave
        :param wait_seconds: how long the broker may hold the request
        :raises RouteNotFoundError: there is no such topic
        :raises RocketMQError: the broker cannot be reached, or returned an error
        """
        await self.learn_route(queue.topic)
        await self._check_filter(wanted)
        address, broker_id = self._replica(queue, suggested=suggested)
        kind = (queue, wanted, count, wait_seconds, max_bytes)
        raw = await self._pull_from(address, kind, offset, timeout)
        if raw.status is PullStatus.OFFSET_ILLEGAL and broker_id != MASTER_ID:
            # A replica may lag behind the master: its end of the queue may be too early.
            address, _ = self._replica(queue, suggested=True, preferred=MASTER_ID)
            raw = await self._pull_from(address, kind, offset, timeout)
        return raw

    async def _pull_from(
        self, address: str, kind: Kind, offset: int, timeout: float | None
    ) -> RawPull:
        own_code = self._lite and address not in self._old
        request = self._request(kind, own_code=own_code)
        command = await request.send(address, offset, timeout)
        if own_code and command.code in NO_LITE:
            request = self._request(kind, own_code=False)
            command = await request.send(address, offset, timeout)
            if command.code in STATUSES:
                self._note_old(address)
        return self._answer(kind[0], command, address)

    def decode(
        self, body: bytes, queue: MessageQueue
    ) -> tuple[list[MessageExt], CodecError | None]:
        """Call `decode_messages` with the settings of the client."""
        return self._instance.remoting.decode(body, queue)

    async def topic_settings(self, queue: MessageQueue) -> TopicSettings:
        """Return settings of the topic of *queue*; none if its broker is too old for them.

        :raises RocketMQError: the broker cannot be reached
        """
        address, _ = self._replica(queue, suggested=False)
        header = GetTopicConfig(topic=queue.topic, with_mapping=is_logical(queue) or None)
        command = await self._instance.remoting.request(address, header)
        if command.code != ResponseCode.SUCCESS:
            return TopicSettings()  # or the broker does not know the topic
        found = read_body(command.body, MappedTopicBody)
        parts = (found.mapping_detail or TopicMapping()).hosted_queues.get(queue.queue_id, ())
        return TopicSettings(
            is_compacted=(found.attributes or {}).get("cleanup.policy") == "COMPACTION",
            part_starts=frozenset(part.logic_offset for part in parts),
        )

    async def learn_route(self, topic: str) -> None:
        """Fetch the route of *topic* unless it is known, and keep it fresh for a while."""
        if self._instance.routes.known(topic) is None:
            await self._instance.routes.get(topic)
        self._topics[topic] = monotonic()

    def topics(self) -> Iterable[str]:
        """Topics whose routes must be fresh: those used in the last ten minutes."""
        since = monotonic() - RECENT_SECONDS
        self._topics = used = {topic: at for topic, at in self._topics.items() if at > since}
        self._replicas = {q: each for q, each in self._replicas.items() if q.topic in used}
        return used

    def on_route_changed(self, topic: str) -> None:
        """Stop refreshing the route of a deleted topic until it is read again."""
        if self._instance.routes.known(topic) is None:
            self._topics.pop(topic, None)

    def on_failed(self, cause: BaseException) -> None:
        """Do nothing: requests raise the failure."""

    async def _check_filter(self, wanted: Subscription) -> None:
        """Have a broker check an SQL expression once: an invalid one would match everything."""
        key = (wanted.topic, wanted.expression)
        if not wanted.is_sql or key in self._checked:
            return
        await self._instance.broker.check_filter(self._instance.client_id, self._group, wanted)
        self._checked[key] = None
        if len(self._checked) > MAX_CHECKED:
            del self._checked[next(iter(self._checked))]  # checked again when it is used again

    def _replica(
        self, queue: MessageQueue, *, suggested: bool, preferred: int | None = None
    ) -> tuple[str, int]:
        """Return the address and the broker id to pull from."""
        routes = self._instance.routes
        # Removed until a response suggests it again: after a failure the master is used.
        last = self._replicas.pop(queue, MASTER_ID)
        if not suggested:
            return routes.master_of(queue), MASTER_ID
        replica = routes.replica_of(queue, last if preferred is None else preferred)
        if replica is None:
            raise NotConnectedError(queue.broker_name, "no route names this broker")
        return replica

    def _request(self, kind: Kind, *, own_code: bool) -> PullRequest:
        request = self._requests.get((kind, own_code))
        if request is None:
            queue, wanted, count, wait_seconds, max_bytes = kind
            if len(self._requests) >= MAX_REQUESTS:
                self._requests.clear()
            request = self._requests[kind, own_code] = PullRequest(
                self._instance,
                self._group,
                queue,
                wanted,
                count,
                lite=self._lite,
                own_code=own_code,
                wait_seconds=wait_seconds,
                max_bytes=max_bytes,
            )
        return request

    def _answer(self, queue: MessageQueue, command: Command, address: str) -> RawPull:
        if command.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            self._instance.routes.invalidate(queue.topic)
        raw, replica = read_raw(command, address)
        if replica != MASTER_ID:
            self._replicas[queue] = replica
        return raw

    def _note_old(self, address: str) -> None:
        if len(self._old) >= MAX_OLD:
            self._old.clear()  # brokers may have moved; the code is tried again at the others
        self._old.add(address)
