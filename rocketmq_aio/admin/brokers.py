"""Broker administration: statistics, settings, replication, cleaning, containers."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from math import isfinite
from time import monotonic, time_ns
from typing import Any, Final, Literal, Unpack
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from rocketmq_aio.admin.results import (
    BrokerInfo,
    BrokerRuntime,
    ClusterInfo,
    GroupProgress,
    progress_of,
)
from rocketmq_aio.admin.server_results import (
    BrokerOverview,
    BrokerStatistics,
    ConsumeQueue,
    Epochs,
    HAStatus,
    ProducerInfo,
    RocksDBCheck,
    SendTest,
    write_properties,
)
from rocketmq_aio.admin.servers import AT_ONCE, NO_MASTER, Servers, Where
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import ConfigError, shown
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests import operations
from rocketmq_aio.protocol.requests.admin import ConsumeStats, GetBrokerRuntime, KVTable
from rocketmq_aio.protocol.requests.send import SendMessage
from rocketmq_aio.remoting.gather import gather_limited

RocksDBConfig = Literal["topics", "subscriptionGroups", "consumerOffsets"]
TimerEngine = Literal["ROCKSDB_TIMELINE", "FILE_TIME_WHEEL"]

MAX_TEST_MESSAGES: Final = 100_000
MAX_TEST_BYTES: Final = 4 * 1024 * 1024
ENGINES: Final = {"ROCKSDB_TIMELINE": "R", "FILE_TIME_WHEEL": "F"}  # names of mqadmin: of requests
OF_TOPICS: Final = ("TOPIC_", "GROUP_", "SNDBCK_")  # statistics whose keys have a topic, or a group
NO_STATISTICS: Final = "The stats <"  # the remark goes on: "<name>@<key> not exist"


class _ConsumeStatsList(msgspec.Struct, rename="camel"):
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []


class _Producers(msgspec.Struct):
    data: dict[str, tuple[ProducerInfo, ...]] = {}


@checked_arguments
class BrokerAdmin:
    """Describes and maintains brokers: ``admin.brokers``.

    Methods with *cluster* and *brokers* go to all masters, to those of the cluster, or to those
    named; they return results by broker name.  With *replicas* they also go to slaves, whose
    results are named ``<broker>:<id>``.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    # --- reading --------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Return all brokers registered with any name server, replicas included.

        :raises NameServerUnavailableError: no name server responded
        :raises NotSupportedError: the servers are proxies, which do not support this
        """
        return await self._servers.cluster_info()

    async def stats(
        self, *, replicas: bool = False, **where: Unpack[Where]
    ) -> builtins.list[BrokerRuntime]:
        """Return the runtime statistics of brokers: version, rates, disks, request queues.

        :raises ConfigError: there is no such cluster or broker
        """
        targets = await self._servers.targets(**where, replicas=replicas)

        async def read(name: str, address: str) -> BrokerRuntime:
            table = (await self._servers.read(address, GetBrokerRuntime(), KVTable)).table
            return BrokerRuntime(broker_name=name, address=address, stats=table)

        found = await self._servers.on_each("reading statistics", targets, read)
        return [*found.values()]

    async def list(self, *, cluster: str | None = None) -> tuple[BrokerOverview, ...]:
        """Return all brokers and replicas with version and rates.

        A broker that does not answer or has no master is in the result, with its ``problem``.

        :raises ConfigError: there is no such cluster
        """
        await self._servers.masters(cluster)
        known = [b for b in (await self.cluster()).brokers if cluster in (None, b.cluster)]
        addresses = [address for each in known for address in each.addresses.values()]

        async def read(address: str) -> dict[str, str]:
            return (await self._servers.read(address, GetBrokerRuntime(), KVTable)).table

        tables, failed = await gather_limited(read, addresses, AT_ONCE)
        problems = {address: shown(str(error)) for address, error in failed.items()}
        problems[""] = NO_MASTER
        return tuple(
            _overview(each, number, address, tables.get(address, {}), problems.get(address))
            for each in known
            for number, address in {0: "", **each.addresses}.items()
        )

    async def consume_stats(
        self, *, order: bool = False, **where: Unpack[Where]
    ) -> dict[str, dict[str, GroupProgress]]:
        """Return the progress of all groups on each broker, by broker and group.

        With a namespace of version 1, of the groups in it.

        :param order: only groups whose topics have an order configuration
        """
        header = operations.GetBrokerConsumeStats(is_order=order)
        action, kind = "reading progress", _ConsumeStatsList
        lists = await self._servers.read_from(action, header, kind, **where)
        return {
            name: {
                group: self._renamed(progress_of(group, tables))
                for entry in each.consume_stats_list
                for outer, tables in entry.items()
                if (group := self._servers.inner(outer)) is not None
            }
            for name, each in lists.items()
        }

    def _renamed(self, progress: GroupProgress) -> GroupProgress:
        """Return *progress* with the client's names of topics."""

        def renamed(queue: MessageQueue) -> MessageQueue:
            return replace(queue, topic=self._servers.inner(queue.topic) or queue.topic)

        queues = tuple(replace(each, queue=renamed(each.queue)) for each in progress.queues)
        return replace(progress, queues=queues)

    async def statistics(
        self, name: str, key: str, **where: Unpack[Where]
    ) -> dict[str, BrokerStatistics]:
        """Return a statistic by broker, for brokers that counted something.

        :param name: such as ``TOPIC_PUT_NUMS`` (key: topic) or ``GROUP_GET_NUMS``
            (key: ``<topic>@<group>``)
        """
        if name.startswith(OF_TOPICS):
            key = "@".join(map(self._servers.outer, key.split("@")))
        header = operations.GetStatistics(stats_name=name, stats_key=key)

        masters = await self._servers.masters(**where)
        return await self._servers.read_stored(
            f"reading statistic {name}", masters, header, BrokerStatistics, NO_STATISTICS
        )

    async def producers(
        self, **where: Unpack[Where]
    ) -> dict[str, dict[str, tuple[ProducerInfo, ...]]]:
        """Return the connected producers by broker and group.

        With a namespace of version 1, of the groups in it.
        """
        action, header = "listing producers", operations.GET_PRODUCERS
        found = await self._servers.read_from(action, header, _Producers, **where)
        return {
            name: {
                group: producers
                for outer, producers in each.data.items()
                if (group := self._servers.inner(outer)) is not None
            }
            for name, each in found.items()
        }

    async def consume_queue(
        self, queue: MessageQueue, index: int, count: int = 10, *, group: str | None = None
    ) -> ConsumeQueue:
        """Return *count* entries of a consume queue from *index* on.

        :param group: match the entries with the subscription of this connected group
        :raises ConfigError: the topic is not on the broker, or there is no entry *index*
        :raises BrokerError: there is no such queue, or it has never had a message
        """
        header = operations.GetConsumeQueue(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=index,
            count=checked_count("count", count),
            consumer_group=group or "",
        )
        masters = await self._servers.masters_of(queue.topic)
        if queue.broker_name not in masters:
            raise ConfigError("queue", queue, f"the topic is on {sorted(masters)}")
        target = {queue.broker_name: masters[queue.broker_name]}
        action = f"reading the consume queue {queue}"
        (response,) = (await self._servers.request_each(action, target, header)).values()
        if not response.body:
            raise ConfigError("index", index, response.remark or "there is no such entry")
        return read_body(response.body, ConsumeQueue)

    # --- settings -------------------------------------------------------------------------------

    async def config(
        self, *, replicas: bool = False, **where: Unpack[Where]
    ) -> dict[str, dict[str, str]]:
        """Return the settings of brokers."""
        targets = await self._servers.targets(**where, replicas=replicas)
        return await self._servers.read_settings(targets, operations.GET_BROKER_CONFIG)

    async def update_config(
        self, settings: Mapping[str, str], *, replicas: bool = False, **where: Unpack[Where]
    ) -> None:
        """Change settings of running brokers, in memory and in their configuration files.

        Some settings need a restart.  ``flushDiskType=SYNC_FLUSH`` is one of them: until then the
        broker stores each message that is sent, and responds with an error (4.9.7, 5.5.0).

        :raises ConfigError: a broker does not have one of the settings, or a value contains a line
            break; nothing was changed
        :raises BrokerError: a setting cannot be changed while the broker runs
        """
        body = write_properties(settings)
        await self._servers.change_settings(
            await self._servers.targets(**where, replicas=replicas),
            settings,
            body,
            read=operations.GET_BROKER_CONFIG,
            change=operations.UPDATE_BROKER_CONFIG,
        )

    # --- replication ----------------------------------------------------------------------------

    async def ha_status(
        self, *, replicas: bool = True, **where: Unpack[Where]
    ) -> dict[str, HAStatus]:
        """Return the replication of masters and slaves (5.0)."""
        targets = await self._servers.targets(**where, replicas=replicas)
        header = operations.GET_HA_STATUS
        return await self._servers.read_each("reading replication", targets, header, HAStatus)

    async def epochs(self, *, replicas: bool = True, **where: Unpack[Where]) -> dict[str, Epochs]:
        """Return the epochs of brokers that a controller manages (5.0).

        :raises BrokerError: a broker has no controller
        """
        targets = await self._servers.targets(**where, replicas=replicas)
        return await self._servers.read_each(
            "reading epochs", targets, operations.GET_EPOCHS, Epochs
        )

    async def reset_master_flush_offset(self, address: str, offset: int) -> None:
        """Set the flush offset of its master that the slave at *address* knows (5.0)."""
        header = operations.ResetMasterFlushOffset(master_flush_offset=offset)
        await self._servers.request(address, header)

    # --- maintenance ----------------------------------------------------------------------------

    async def clean_expired_queues(self, **where: Unpack[Where]) -> None:
        """Delete consume queues without any message left; their offsets begin at 0 again."""
        header = operations.CLEAN_EXPIRED_QUEUES
        await self._servers.send_to("cleaning queues", header, **where)

    async def clean_unused_topics(self, **where: Unpack[Where]) -> None:
        """Delete consume queues of topics that the broker does not have any more."""
        header = operations.CLEAN_UNUSED_TOPICS
        await self._servers.send_to("cleaning topics", header, **where)

    async def delete_expired_logs(self, **where: Unpack[Where]) -> None:
        """Delete commit log files that are older than ``fileReservedTime`` now."""
        header = operations.DELETE_EXPIRED_LOGS
        await self._servers.send_to("deleting logs", header, **where)

    async def set_read_ahead(self, *, random: bool, **where: Unpack[Where]) -> None:
        """Read commit log files *random*, without reading ahead, or as by default (5.1.2)."""
        header = operations.SetReadAhead(mode="1" if random else "0")
        await self._servers.send_to("setting the read-ahead", header, **where)

    async def switch_timer_engine(self, engine: TimerEngine, **where: Unpack[Where]) -> None:
        """Choose the engine that stores delayed messages (5.4.0).

        :raises BrokerError: the broker was started without the engine (``timerRocksDBEnable``)
        """
        header = operations.SwitchTimerEngine(engine=ENGINES[engine])
        await self._servers.send_to("switching the timer engine", header, **where)

    async def cold_data(self, **where: Unpack[Where]) -> dict[str, dict[str, Any]]:
        """Return the limits and rates of groups that read from disk (5.1.2)."""
        header, kind = operations.GET_COLD_DATA, dict[str, Any]
        return await self._servers.read_from("reading cold data", header, kind, **where)

    async def limit_cold_data(
        self, group: str, bytes_per_second: int, **where: Unpack[Where]
    ) -> None:
        """Limit what a group may read from disk (5.1.2)."""
        outer = self._servers.outer(group)
        body = write_properties({outer: str(checked_count("bytes_per_second", bytes_per_second))})
        header = operations.LIMIT_COLD_DATA
        await self._servers.send_to(f"limiting group {group}", header, body, **where)

    async def unlimit_cold_data(self, group: str, **where: Unpack[Where]) -> None:
        """Remove the limit of a group (5.1.2)."""
        header, action = operations.UNLIMIT_COLD_DATA, f"removing the limit of group {group}"
        body = self._servers.outer(group).encode()
        await self._servers.send_to(action, header, body, **where)

    async def check_rocksdb_queues(
        self, topic: str, *, since_millis: int = 0, **where: Unpack[Where]
    ) -> dict[str, RocksDBCheck]:
        """Compare the consume queues of *topic* in RocksDB with those in files (5.3.1).

        Newer brokers compare in the background: they return status 2, and log the result.
        """
        header = operations.CheckRocksDBQueues(topic=topic, check_store_time=since_millis)
        action, kind = "comparing queues", RocksDBCheck
        return await self._servers.read_from(action, header, kind, **where)

    async def export_rocksdb_config(self, *kinds: RocksDBConfig, **where: Unpack[Where]) -> None:
        """Make brokers write their settings in RocksDB to JSON files on their machines (5.3.2)."""
        header = operations.ExportRocksDBConfig(config_type=";".join(kinds))
        await self._servers.send_to("exporting settings", header, **where)

    async def roll_back_pops(self, **where: Unpack[Where]) -> None:
        """Move records of popped messages from RocksDB to the file store (5.3.2).

        Needed before ``popConsumerKVServiceEnable`` is switched off.
        """
        header = operations.ROLL_BACK_POPS
        await self._servers.send_to("moving pop records", header, **where)

    async def send_test(
        self, *, count: int = 10, size: int = 128, **where: Unpack[Where]
    ) -> dict[str, SendTest]:
        """Send *count* messages of *size* bytes to each broker, and return how long each took.

        They go to the topic with the name of the broker, which all brokers have.
        """
        checked_count("count", count, most=MAX_TEST_MESSAGES)
        checked_count("size", size, most=MAX_TEST_BYTES)

        async def send(name: str, address: str) -> SendTest:
            self._servers.instance.remoting.share(name)  # not one of a namespace
            times = []
            for _ in range(count):
                began = monotonic()
                await self._servers.request(address, _test_message(name), b"x" * size)
                times.append(monotonic() - began)
            return SendTest(broker_name=name, seconds=tuple(times))

        masters = await self._servers.masters(**where)
        return await self._servers.on_each("sending test messages", masters, send)

    # --- containers -----------------------------------------------------------------------------

    async def add(self, container: str, config_path: str) -> None:
        """Start a broker in the container at address *container* (5.0).

        :param config_path: of the broker's configuration file, on the machine of the container
        """
        await self._servers.request(container, operations.AddBroker(config_path=config_path))

    async def remove(self, container: str, cluster: str, broker: str, broker_id: int) -> None:
        """Stop a broker in the container at address *container* (5.0)."""
        header = operations.RemoveBroker(
            broker_name=broker, broker_cluster_name=cluster, broker_id=broker_id
        )
        await self._servers.request(container, header)


def _overview(
    broker: BrokerInfo, broker_id: int, address: str, table: Mapping[str, str], problem: str | None
) -> BrokerOverview:
    return BrokerOverview(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_id=broker_id,
        address=address,
        version=table.get("brokerVersionDesc", ""),
        put_tps=_first(table, "putTps"),
        get_tps=_first(table, "getTransferredTps"),
        messages_today=int(
            _first(table, "msgPutTotalTodayNow") - _first(table, "msgPutTotalTodayMorning")
        ),
        disk_ratio=_first(table, "commitLogDiskRatio"),
        problem=problem,
    )


def _first(table: Mapping[str, str], name: str) -> float:
    """Return the first number of a statistic, which has the rates of several intervals."""
    try:
        number = float(table[name].split()[0])
    except (KeyError, IndexError, ValueError):
        return 0.0
    return number if isfinite(number) else 0.0


def _test_message(broker_name: str) -> SendMessage:
    return SendMessage(
        producer_group="TOOLS_PRODUCER",
        topic=broker_name,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=time_ns() // 1_000_000,
        flag=0,
        properties=f"UNIQ_KEY\x01{uuid4().hex.upper()}\x02WAIT\x01true\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=broker_name,
    )
