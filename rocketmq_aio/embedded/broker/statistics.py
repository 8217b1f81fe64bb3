"""Statistics of a broker: topics, progress of groups, counts of messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rocketmq_aio.admin.server_results import ConsumeQueueEntry, QueueTimeSpan, Statistics
from rocketmq_aio.embedded.broker.clients import ClientProcessor
from rocketmq_aio.embedded.broker.groups import OfGroup
from rocketmq_aio.embedded.broker.state import WINDOWS, BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import QueueLog
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import MessageQueueBody, queue_table
from rocketmq_aio.protocol.requests import admin, operations
from rocketmq_aio.protocol.subscription import java_hash

NO_TOPIC: Final = "topic[{}] not exist"
TOPIC_STATS: Final = frozenset({"TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"})
GROUP_STATS: Final = frozenset({"GROUP_GET_NUMS", "GROUP_GET_SIZE"})
OTHER_STATS: Final = """SNDBCK_PUT_NUMS BROKER_PUT_NUMS BROKER_GET_NUMS GROUP_GET_FALL_SIZE
    GROUP_GET_FALL_TIME GROUP_GET_LATENCY""".split()  # counted by real brokers; here they are 0


class StatisticsProcessor:
    """Describes topics and the progress of groups, computed from the store."""

    def __init__(self, state: BrokerState, clients: ClientProcessor) -> None:
        self._state = state
        self._clients = clients

    @reads(admin.GetTopicStats)
    def topic_stats(self, header: admin.GetTopicStats) -> object:
        name = header.topic
        topic = self._state.topic(name, NO_TOPIC)
        table = {
            MessageQueue(name, self._state.name, number): admin.TopicOffset(
                min_offset=log.min_offset,
                max_offset=log.max_offset,
                last_update_timestamp=_store_time(log, log.max_offset - 1),
            )
            for number, log in topic.to_write()
        }
        body: dict[str, Any] = {"offsetTable": queue_table(table)}
        if self._state.version.is_5:
            body["topicPutTps"] = self._stored(topic.queues, 60)[0] / 60
        return body

    @reads(admin.GetConsumeStats)
    def consume_stats(self, header: admin.GetConsumeStats) -> object:
        group = header.consumer_group
        topics = [header.topic] if header.topic else self._topics_of(group)
        return self._progress(group, topics)[0]

    @reads(operations.GetBrokerConsumeStats)
    def all_consume_stats(self, header: operations.GetBrokerConsumeStats) -> object:
        found, total = [], 0
        for group in self._state.groups:
            stats = []
            for name in self._topics_of(group):
                topic = self._state.store.find_topic(name)
                if topic is not None and (topic.order or not header.is_order):
                    progress, lag = self._progress(group, [name])
                    stats.append(progress)
                    total += lag
            found.append({group: stats})
        host, port = self._state.store.host
        body = {"consumeStatsList": found, "brokerAddr": f"{host}:{port}", "totalDiff": total}
        if self._state.version.is_5:
            body["totalInflightDiff"] = 0
        return body

    @reads(admin.GetGroupsOfTopic)
    def groups_of_topic(self, header: admin.GetGroupsOfTopic) -> object:
        topic, groups = header.topic, self._clients.groups.items()
        online = [name for name, group in groups if topic in group.subscriptions]
        committed = [group for group, name, _ in self._state.committed if name == topic]
        return admin.GroupList(group_list=list(dict.fromkeys([*online, *committed])))

    @reads(OfGroup, OtherCode.QUERY_TOPICS_BY_CONSUMER, version=5)
    def topics_of_group(self, header: OfGroup) -> object:
        return admin.TopicList(topic_list=self._topics_of(header.group))

    @reads(OfGroup, OtherCode.QUERY_SUBSCRIPTION_BY_CONSUMER, version=5)
    def subscription(self, header: OfGroup) -> object:
        body: dict[str, Any] = {"group": header.group, "topic": header.topic}
        if (found := self._clients.subscription(header.group, header.topic)) is not None:
            body["subscriptionData"] = found
        return body

    @reads(operations.GetConsumeTimeSpan)
    def time_span(self, header: operations.GetConsumeTimeSpan) -> object:
        queues = self._state.topic(header.topic, NO_TOPIC).to_write()
        return {"consumeTimeSpanSet": [self._span(header, *queue) for queue in queues]}

    @reads(operations.GetConsumeQueue)
    def consume_queue(self, header: operations.GetConsumeQueue) -> object:
        topic, number = header.topic or "", header.queue_id or 0
        log = self._state.store.queue(topic, number)
        if log is None:
            raise ErrorResponse(f"{number}@{topic} is not exist!")
        first = (header.index or 0) - log.min_offset
        if not 0 <= first < len(log.messages):
            return Response(remark=f"Index {header.index} of {number}@{topic} is not exist!")
        body: dict[str, Any] = {
            "minQueueIndex": log.min_offset,
            "maxQueueIndex": log.max_offset,
            "queueData": [
                ConsumeQueueEntry(
                    physic_offset=each.log_offset,
                    physic_size=len(each.record),
                    tags_code=0 if each.tag is None else java_hash(each.tag),
                )
                for each in log.messages[first : first + max(0, header.count or 0)]
            ],
        }
        if (name := header.consumer_group) is not None:
            body["subscriptionData"] = found = self._clients.subscription(name, topic)
            body["filterData"] = "null" if found else f"{name}@{topic} is not online!"
        return body

    @reads(operations.GetStatistics)
    def stats_data(self, header: operations.GetStatistics) -> object:
        name, key = header.stats_name, header.stats_key
        topic_name, _, group = key.partition("@")
        rate = self._state.rates.get((topic_name, group)) if name in GROUP_STATS else None
        topic = self._state.store.topics.get(key) if name in TOPIC_STATS else None
        if rate is None and topic is None and name not in OTHER_STATS:
            raise ErrorResponse(f"The stats <{name}> <{key}> not exist")
        sizes, table = name.endswith("SIZE"), {}
        for window, seconds in WINDOWS.items():
            if topic is not None:
                messages, size = self._stored(topic.queues, seconds, sizes=sizes)
            else:
                messages, size = rate.count(seconds) if rate is not None else (0, 0)
            total = size if sizes else messages
            average = total / messages if messages else 0.0
            table[window] = Statistics(sum=total, tps=total / seconds, average=average)
        return table

    # --- inside ---------------------------------------------------------------------------------

    def _topics_of(self, group: str) -> list[str]:
        return list(dict.fromkeys(name for each, name, _ in self._state.committed if each == group))

    def _progress(self, group: str, topics: Sequence[str]) -> tuple[dict[str, Any], int]:
        """Return the progress of *group* and its lag, without topics that no member subscribes."""
        members = self._clients.groups.get(group)
        table: dict[MessageQueue, admin.OffsetWrapper] = {}
        for name in topics:
            topic = self._state.store.find_topic(name)
            if topic is None or (members is not None and name not in members.subscriptions):
                continue
            for number, log in topic.to_read():
                key = group, name, number
                offset = self._state.committed.get(key, 0)
                pulled = max(offset, self._state.pulled.get(key, offset))
                table[MessageQueue(name, self._state.name, number)] = admin.OffsetWrapper(
                    broker_offset=log.max_offset,
                    consumer_offset=offset,
                    last_timestamp=_store_time(log, offset - 1),
                    pull_offset=pulled if self._state.version.is_5 else None,
                )
        rates = [self._state.rates.get((name, group)) for name in topics]
        tps = sum(rate.per_second(60) for rate in rates if rate is not None)
        lag = sum(each.broker_offset - each.consumer_offset for each in table.values())
        return {"offsetTable": queue_table(table), "consumeTps": float(tps)}, lag

    def _stored(
        self, logs: Iterable[QueueLog], seconds: int, *, sizes: bool = False
    ) -> tuple[int, int]:
        """Return the messages stored in the last *seconds*, and their bytes if *sizes*."""
        since = self._state.clock.now_ms() - seconds * 1000
        messages = size = 0
        for log in logs:
            first = bisect_left(log.messages, since, key=lambda stored: stored.store_ms)
            messages += len(log.messages) - first
            if sizes:
                size += sum(len(each.record) for each in log.messages[first:])
        return messages, size

    def _span(
        self, header: operations.GetConsumeTimeSpan, number: int, log: QueueLog
    ) -> QueueTimeSpan:
        offset = self._state.committed.get((header.group, header.topic, number), 0)
        earliest = _store_time(log, log.min_offset) or -1
        delay = 0
        if offset < log.max_offset:
            delay = self._state.clock.now_ms() - _store_time(log, max(offset, log.min_offset))
        return QueueTimeSpan(
            message_queue=MessageQueueBody(
                topic=header.topic, broker_name=self._state.name, queue_id=number
            ),
            min_time_stamp=earliest,
            max_time_stamp=_store_time(log, log.max_offset - 1) or -1,
            consume_time_stamp=(_store_time(log, offset - 1) if offset else 0) or earliest,
            delay_time=delay,
        )


def _store_time(log: QueueLog, offset: int) -> int:
    """Return the store time of the message at *offset*; 0 if there is none."""
    stored = log.get(offset)
    return 0 if stored is None else stored.store_ms
