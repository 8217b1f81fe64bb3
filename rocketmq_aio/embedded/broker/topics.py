"""Topics of a broker: create, update, delete and list them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rocketmq_aio.embedded.broker.attributes import OF_TOPICS, changed_attributes
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Page
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.handlers import answers, check_numbers, reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.names import (
    DLQ_PREFIX,
    MAX_TOPIC,
    NAME,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIXES,
)
from rocketmq_aio.protocol.bodies import MAX_QUEUES, Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests import admin
from rocketmq_aio.protocol.requests.operations import CreateStaticTopic, TopicMapping

TEMPLATE_TOPIC: Final = "TBW102"
TEMPLATE_QUEUES: Final = 8
ALL_PERMISSIONS: Final = 7  # read, write, and a template for topics that sends create
# Topics of every broker: number of queues and permission.
SYSTEM_TOPICS: Final = {
    "SELF_TEST_TOPIC": (1, 6),
    "BenchmarkTest": (1024, 6),
    "OFFSET_MOVED_EVENT": (1, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "RMQ_SYS_TRACE_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    "TRANS_CHECK_MAX_TIME_TOPIC": (1, 6),
}


class TopicConfigList(Body, frozen=True):
    """Body of the request that creates several topics."""

    topic_config_list: list[admin.TopicConfigBody]


class TopicProcessor:
    """Administers the topics of a broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        own = {
            state.name: (1, ALL_PERMISSIONS),
            state.cluster: (16, ALL_PERMISSIONS),
            state.cluster + REPLY_TOPIC_SUFFIX: (1, 6),
        }
        if state.auto_create_topics:
            own[TEMPLATE_TOPIC] = TEMPLATE_QUEUES, ALL_PERMISSIONS
        for name, (queues, perm) in (own | SYSTEM_TOPICS).items():
            if name not in state.store.topics:
                state.store.create_topic(name, queues, perm)

    @reads(admin.CreateTopic)
    def create(self, header: admin.CreateTopic) -> None:
        signed = [part.partition("=") for part in (header.attributes or "").split(",") if part]
        self._put(header.topic, header, {name: value for name, _, value in signed})

    @reads(TopicConfigList, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, version=5)
    def create_all(self, body: TopicConfigList) -> None:
        for config in body.topic_config_list:
            self._put(config.topic_name, config, config.attributes or {})

    @reads(admin.DeleteTopicInBroker)
    def delete(self, header: admin.DeleteTopicInBroker) -> None:
        if not header.topic.strip():
            raise self._state.invalid("The specified topic is blank.")
        self._check_not_system(header.topic)
        self._state.delete_topic(header.topic)

    @reads(Command, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, version=5)
    def create_static(self, command: Command) -> None:
        mapping = check_numbers(read_body(command.body, TopicMapping))
        self.create(check_numbers(read_header(command, CreateStaticTopic)))
        self._state.mappings[mapping.topic] = mapping

    @reads(admin.GetTopicConfig, version=5)
    def config(self, header: admin.GetTopicConfig) -> dict[str, Any]:
        self._state.topic(header.topic, "No topic in this broker. topic: {}")
        mapping = self._state.mappings.get(header.topic) if header.with_mapping else None
        return self._body(header.topic) | ({} if mapping is None else {"mappingDetail": mapping})

    @reads(Page, RequestCode.GET_ALL_TOPIC_CONFIG)
    def configs(self, page: Page) -> object:
        names = self._state.store.topics
        table = {name: self._body(name) for name in page.of(names)}
        body = {"topicConfigTable": table, "dataVersion": self._state.data_version()}
        if self._state.version.is_5:
            mappings = self._state.mappings.items()
            body["topicQueueMappingDetailMap"] = {n: each for n, each in mappings if n in table}
        ext = {"totalTopicNum": str(len(names))} if self._state.version.is_5 else {}
        return Response(ext=ext, body=msgspec.json.encode(body))

    @answers(OtherCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system(self) -> object:
        names = [name for name in self._state.store.topics if self._is_system(name)]
        return admin.TopicList(topic_list=names)

    # --- inside ---------------------------------------------------------------------------------

    def _put(
        self, name: str, config: admin.CreateTopic | admin.TopicConfigBody, signed: dict[str, str]
    ) -> None:
        """Create or change a topic; *signed* are changes of attributes."""
        if (fault := topic_fault(name, is_5=self._state.version.is_5)) is not None:
            raise self._state.invalid(fault)
        self._check_not_system(name)
        if self._state.store.is_light(name):
            return  # it has no settings
        before = self._state.store.topics.get(name)
        held = None if before is None else before.attributes
        attributes = changed_attributes(OF_TOPICS, held, signed)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queues > MAX_QUEUES:  # real brokers accept any number
            remark = f"a topic of an embedded broker has at most {MAX_QUEUES} queues, not {queues}"
            raise ErrorResponse(remark)
        topic = self._state.store.create_topic(name, queues, config.perm)
        topic.read_queues, topic.write_queues = config.read_queue_nums, config.write_queue_nums
        topic.sys_flag, topic.attributes = config.topic_sys_flag or 0, attributes
        topic.order = config.order and self._state.version.is_5
        self._state.changes += 1

    def _body(self, name: str) -> dict[str, Any]:
        topic = self._state.topic(name)
        config = admin.TopicConfigBody(
            topic_name=name,
            read_queue_nums=topic.read_queues,
            write_queue_nums=topic.write_queues,
            perm=topic.perm,
            topic_sys_flag=topic.sys_flag,
            order=topic.order,
            attributes=topic.attributes,
        )
        body: dict[str, Any] = msgspec.to_builtins(config)
        if not self._state.version.is_5:
            del body["attributes"]
        return body

    def _is_system(self, name: str) -> bool:
        state = self._state
        own = (state.name, state.cluster, TEMPLATE_TOPIC, state.cluster + REPLY_TOPIC_SUFFIX)
        return name in SYSTEM_TOPICS or name in own or name.startswith(SYSTEM_PREFIXES)

    def _check_not_system(self, name: str) -> None:
        if self._is_system(name):
            raise self._state.invalid(f"The topic[{name}] is conflict with system topic.")


def topic_fault(name: str, *, is_5: bool) -> str | None:
    """Return the remark of a broker to an invalid name; None: it is valid."""
    if not name.strip():
        return "The specified topic is blank."
    shown = f"The specified topic: {name}," if is_5 else "The specified topic"
    if not NAME.fullmatch(name):
        return f"{shown} contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > MAX_TOPIC and not (is_5 and name.startswith((RETRY_PREFIX, DLQ_PREFIX))):
        return f"{shown} is longer than topic max length{f': {MAX_TOPIC}' if is_5 else '.'}"
    return None
