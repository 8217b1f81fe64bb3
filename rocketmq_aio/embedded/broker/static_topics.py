"""Static topics (5.x): logical queues, which keep their numbers on any number of brokers.

Queues stay where they were created: moving them is not supported.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.topics import TopicProcessor
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.admin import GetTopicConfig
from rocketmq_aio.protocol.requests.operations import CreateStaticTopic

SEND_FIELDS: Final = ("b", "e")  # topic and queue id
FIELDS: Final = ("topic", "queueId")
SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
BY_QUEUE: Final = SENDS | {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
}


class StaticTopics:
    """Mappings of static topics, and requests for their logical queues."""

    def __init__(self, state: BrokerState, topics: TopicProcessor) -> None:
        self.mappings: dict[str, dict[str, Any]] = {}  # JSON as the tool sends it, by topic
        self._state = state
        self._topics = topics

    @reads(Command, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, version=5)
    def create(self, command: Command) -> None:
        detail = read_body(command.body, dict)
        if any(len(items) > 1 for items in (detail.get("hostedQueues") or {}).values()):
            remark = "the embedded broker cannot move queues of static topics"
            raise ErrorResponse(remark, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        self._topics.create(read_header(command, CreateStaticTopic))
        self.mappings[detail["topic"]] = detail

    @reads(GetTopicConfig, version=5)
    def config(self, header: GetTopicConfig) -> dict[str, Any]:
        """Return the settings of a topic, with its mapping."""
        config = self._topics.config(header)
        mapping = self.mappings.get(header.topic) if header.with_mapping else None
        return config if mapping is None else {**config, "mappingDetail": mapping}

    def route_info(self, topic: str) -> dict[str, Any] | None:
        """Return the part of a route that names the logical queues of this broker."""
        mapping = self.mappings.get(topic)
        if mapping is None:
            return None
        hosted = mapping.get("hostedQueues") or {}
        fields = ("topic", "scope", "totalQueues", "bname", "epoch", "dirty")
        numbers = {number: items[0]["queueId"] for number, items in hosted.items()}
        return {name: mapping.get(name) for name in fields} | {"currIdMap": numbers}

    def to_physical(self, command: Command) -> tuple[Command, str | None]:
        """Return *command* for the physical queue, and the logical queue id if it had one.

        :raises ErrorResponse: this broker does not own the logical queue
        """
        if command.code not in BY_QUEUE:
            return command, None
        topic_field, queue_field = SEND_FIELDS if command.code in SENDS else FIELDS
        ext = command.ext_fields()
        mapping = self.mappings.get(ext.get(topic_field, ""))
        if mapping is None or ext.get("lo") == "false":
            return command, None
        number = ext.get(queue_field, "")
        items = (mapping.get("hostedQueues") or {}).get(number)
        if not items:
            name = self._state.name
            remark = f"{number} does not exit in request process of current broker {name}"
            raise ErrorResponse(remark, ResponseCode.NOT_LEADER_FOR_QUEUE)
        physical = {**ext, queue_field: str(items[0]["queueId"])}
        return replace(command, ext=physical), number
