"""RawPulls: many pulls by offset at once, each request encoded ahead; the answers stay bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketmq_aio.consumer.pull.result import STATUSES, RawPull, raw, read_answer
from rocketmq_aio.errors import CodecError, NotConnectedError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID, PULL_LITE, PULL_SUBSCRIPTION, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin_topics import GetTopicConfig, TopicConfigBody
from rocketmq_aio.protocol.requests.pull import LitePullMessage, PullMessage
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.protocol.templates import PullTemplate

MAX_TEMPLATES: Final = 4096
MAX_CHECKED: Final = 1024
MAX_OLD: Final = 1024
# What brokers say to the request of lite pull that do not know it, or may not serve it.
NO_LITE: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)

Key = tuple[MessageQueue, int, str, str, type[PullMessage]]


class RawPulls:
    """Pulls of queues that somebody else keeps the progress of; no member of the group.

    Nothing is suspended, committed or repeated here.  Brokers of 5.x serve the request of lite
    pull with threads of their own; others are asked with the older one.
    """

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._topics: set[str] = set()
        self._old: set[str] = set()  # addresses that do not serve lite pull
        self._replicas: dict[MessageQueue, int] = {}  # from where brokers say to read
        self._templates: dict[Key, PullTemplate] = {}
        self._checked: dict[tuple[str, str, str], None] = {}  # expressions that brokers accept
        instance.register_reader(self)

    @property
    def group(self) -> str:
        """The group that is named in the requests."""
        return self._group

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int,
        wanted: Subscription,
        *,
        timeout: float,
        suggested: bool = False,
    ) -> RawPull:
        """Return the broker's answer.

        :param suggested: ask where the last answer said to, which may be a slave
        :raises RouteNotFoundError: there is no such topic
        :raises RocketMQError: the broker cannot be asked, or refuses
        """
        await self._prepare(queue, wanted)
        address = self._address(queue, suggested=suggested)
        kind = PullMessage if address in self._old else LitePullMessage
        command = await self._ask(address, kind, queue, offset, count, wanted, timeout)
        if command.code in NO_LITE and kind is LitePullMessage:
            command = await self._ask(address, PullMessage, queue, offset, count, wanted, timeout)
            if command.code in STATUSES:
                self._note_old(address)
        if command.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            self._instance.routes.doubt(queue.topic)
        answer = read_answer(command, address)
        if (replica := answer.fields.suggest_which_broker_id) != MASTER_ID:
            self._replicas[queue] = replica
        return raw(answer)

    def decode(
        self, body: bytes, queue: MessageQueue
    ) -> tuple[list[MessageExt], CodecError | None]:
        """Return what `decode_messages` does, as the settings of the client say."""
        return self._instance.remoting.decode(body, queue)

    async def is_compacted(self, queue: MessageQueue) -> bool:
        """Whether the broker keeps only the last message of each key (5.x), so that gaps are fine.

        :raises RocketMQError: the broker cannot be asked
        """
        address = self._address(queue, suggested=False)
        header = GetTopicConfig(topic=queue.topic)
        command = await self._instance.remoting.request(address, header)
        if command.code != ResponseCode.SUCCESS:
            return False  # it is too old to know such topics, or does not know this one
        attributes = read_body(command.body, TopicConfigBody).attributes or {}
        return attributes.get("cleanup.policy") == "COMPACTION"

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Topics whose routes must be fresh: all that were read."""
        return self._topics

    def on_route_changed(self, topic: str) -> None:
        """A topic that is gone is asked for when it is read again."""
        if self._instance.routes.known(topic) is None:
            self._topics.discard(topic)

    def on_failed(self, cause: BaseException) -> None:
        """Requests tell it."""

    # --- inside ---------------------------------------------------------------------------------

    async def _prepare(self, queue: MessageQueue, wanted: Subscription) -> None:
        if self._instance.routes.known(queue.topic) is None:
            await self._instance.routes.get(queue.topic)
        self._topics.add(queue.topic)
        key = (wanted.topic, wanted.expression, wanted.kind)
        if wanted.is_sql and key not in self._checked:
            # An expression that does not parse would be answered with everything.
            await self._instance.broker.check_filter(self._instance.client_id, self._group, wanted)
            self._checked[key] = None
            if len(self._checked) > MAX_CHECKED:
                del self._checked[next(iter(self._checked))]  # at worst it is checked again

    def _address(self, queue: MessageQueue, *, suggested: bool) -> str:
        routes = self._instance.routes
        # Forgotten until an answer names it again: after a failure the master is asked.
        preferred = self._replicas.pop(queue, MASTER_ID)
        if not suggested:
            return routes.master_of(queue)
        replica = routes.replica_of(queue, preferred)
        if replica is None:
            raise NotConnectedError(queue.broker_name, "no route names this broker")
        return replica[0]

    async def _ask(
        self,
        address: str,
        kind: type[PullMessage],
        queue: MessageQueue,
        offset: int,
        count: int,
        wanted: Subscription,
        timeout: float,
    ) -> Command:
        remoting = self._instance.remoting
        if not remoting.takes_prepared:
            header = self._header(kind, queue, offset, count, wanted)
            return await remoting.request(address, header, timeout=timeout)
        key = (queue, count, wanted.expression, wanted.kind, kind)
        template = self._templates.get(key)
        if template is None:
            template = self._remember(key, self._header(kind, queue, offset, count, wanted))

        def frame(opaque: int) -> tuple[bytes, bytes]:
            return template.frame(opaque, offset), b""

        return await remoting.exchange(address, template.code, frame, timeout)

    def _note_old(self, address: str) -> None:
        if len(self._old) >= MAX_OLD:
            self._old.clear()  # brokers that have moved; the others are asked with both once more
        self._old.add(address)

    def _remember(self, key: Key, header: PullMessage) -> PullTemplate:
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        template = self._templates[key] = PullTemplate(header)
        return template

    def _header(
        self,
        kind: type[PullMessage],
        queue: MessageQueue,
        offset: int,
        count: int,
        wanted: Subscription,
    ) -> PullMessage:
        return kind(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION | PULL_LITE,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=wanted.expression,
            sub_version=0,
            expression_type=wanted.kind,
            broker_name=queue.broker_name,
        )
