"""AdminClient with controllers and replicas, compared with mqadmin."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rocketmq_aio import (
    AdminClient,
    BrokerError,
    Message,
    MessageExt,
    MessageQueue,
    ProducerConfig,
    PullConsumer,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.cli.app import run
from rocketmq_aio.testing import Cluster, ControlledBroker
from tests.broker.official_tool import OfficialTool
from tests.topologies.controlled import create_topic
from tests.topologies.test_failover import broker, controlled
from tests.unit.remoting.until import until_done

__all__ = ["broker", "controlled"]  # fixtures


@pytest.fixture
def tool(controlled: Cluster, tmp_path: Path) -> Iterator[OfficialTool]:
    """mqadmin on the cluster with controllers."""
    with closing(OfficialTool(controlled.version, controlled.namesrv, tmp_path)) as tool:
        yield tool


@pytest.mark.mqadmin("getControllerMetaData getSyncStateSet getControllerConfig")
@pytest.mark.mqadmin("updateControllerConfig electMaster cleanBrokerMetadata getBrokerEpoch")
async def test_controllers_are_described_and_elect_masters(
    controlled: Cluster, broker: ControlledBroker, tool: OfficialTool
) -> None:
    async with AdminClient(namesrv=controlled.namesrv) as admin:
        (settings,) = (await admin.brokers.config()).values()
        controller = settings["controllerAddr"]
        metadata = await admin.controllers.metadata(controller)
        before = (await admin.controllers.in_sync_sets(controller, [broker.name]))[broker.name]
        config = (await admin.controllers.config([controller]))[controller]
        epochs = await admin.brokers.epochs()
        printed, reported, configured, epoch_lists = await tool(
            f"getControllerMetaData -a {controller}",
            f"getSyncStateSet -a {controller} -b {broker.name}",
            f"getControllerConfig -a {controller}",
            f"getBrokerEpoch -b {broker.name}",
        )
        status = await admin.brokers.ha_status()

        assert metadata.leader_address == controller
        assert f"#ControllerLeaderAddress\t{controller}" in printed
        assert str(before.master_address) in reported
        assert len(before.in_sync) == 3
        assert before.not_in_sync == ()
        shown = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", configured, re.M))
        assert shown["controllerType"]
        assert {name: config.get(name) for name in shown} == shown
        listed = re.findall(r"epoch=(\d+), startOffset=(\d+)", epoch_lists, re.I)
        assert sorted(listed) == sorted(
            (str(one.epoch), str(one.start_offset))
            for each in epochs.values()
            for one in each.epochs
        )
        assert len(epochs) == len(status) == 3
        assert {each.broker_name for each in epochs.values()} == {broker.name}
        assert status[broker.name].in_sync_slave_nums == 2
        replicas = {each.broker_id for each in before.in_sync} - {before.master_broker_id}
        chosen = min(replicas)

        elected = await admin.controllers.elect_master(
            controller, "DefaultCluster", broker.name, chosen
        )

        assert elected.master_broker_id == chosen
        after = (await admin.controllers.in_sync_sets(controller, [broker.name]))[broker.name]
        assert (after.master_broker_id, after.master_epoch) == (
            chosen,
            (before.master_epoch or 0) + 1,
        )
        with pytest.raises(BrokerError):  # no replica of that name
            await admin.controllers.elect_master(controller, "DefaultCluster", "elsewhere", 1)
        with pytest.raises(BrokerError):  # they are alive
            await admin.controllers.clean(
                controller, "DefaultCluster", broker.name, broker_ids=[chosen]
            )
        still = (await admin.controllers.in_sync_sets(controller, [broker.name]))[broker.name]
        assert len(still.in_sync) + len(still.not_in_sync) == 3
        await admin.controllers.update_config([controller], {"scanNotActiveBrokerInterval": "4000"})
        (configured,) = await tool(f"getControllerConfig -a {controller}")
        assert re.search(r"scanNotActiveBrokerInterval\s*=\s*4000\b", configured)

        async def follows() -> bool:
            overviews = await admin.brokers.list()
            return any(each.broker_id == 0 and not each.problem for each in overviews)

        await until_done(follows, "the new master", 60)


async def test_a_commit_follows_a_master_that_was_replaced(
    controlled: Cluster, broker: ControlledBroker
) -> None:
    """Its route still names the former master, which rejects the commit as a slave."""

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    topic, config = create_topic(controlled, "payments"), ProducerConfig(send_timeout_seconds=40)
    at = controlled.namesrv
    async with (
        AdminClient(namesrv=at) as admin,
        TransactionProducer("till", check=check, namesrv=at, config=config) as producer,
    ):
        (settings,) = (await admin.brokers.config()).values()
        controller = settings["controllerAddr"]
        known = (await admin.controllers.in_sync_sets(controller, [broker.name]))[broker.name]
        chosen = min({each.broker_id for each in known.in_sync} - {known.master_broker_id})

        async def is_replaced() -> bool:
            (info,) = (await admin.brokers.cluster()).brokers
            return info.master not in (None, known.master_address)

        async with producer.transaction(Message(topic, b"paid")) as transaction:
            await admin.controllers.elect_master(controller, "DefaultCluster", broker.name, chosen)
            await until_done(is_replaced, "the new master", 60)

        assert transaction.result is not None
        assert transaction.result.confirmed
        async with PullConsumer("readers", namesrv=at) as reader:
            queue = transaction.sent.queue
            await until_done(lambda: _is_stored(reader, queue), "the message", 60)


async def _is_stored(reader: PullConsumer, queue: MessageQueue) -> bool:
    return await reader.max_offset(queue) == 1


async def test_doctor_checks_replicas_and_controllers(
    controlled: Cluster, broker: ControlledBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "-n", controlled.namesrv, "-o", "json"]

    assert await asyncio.to_thread(run, arguments) == 0

    names = {row["check"] for row in json.loads(capfd.readouterr().out)}
    assert len([each for each in names if each.startswith(f"broker {broker.name}")]) == 3
    assert len([each for each in names if each.startswith("controller ")]) == 1


@pytest.mark.mqadmin("haStatus resetMasterFlushOffset")
async def test_the_replication_of_a_master_and_its_slave_is_shown(replicated: Cluster) -> None:
    async with AdminClient(namesrv=replicated.namesrv) as admin:
        overviews = await admin.brokers.list()
        assert [each.broker_id for each in overviews] == [0, 1]
        assert [each.problem for each in overviews] == [None, None]
        if replicated.version.startswith("4."):
            with pytest.raises(RocketMQError, match=r"5\.0"):
                await admin.brokers.ha_status()
            return
        name = overviews[0].broker_name

        async def connected() -> bool:
            return bool((await admin.brokers.ha_status())[name].slaves)

        await until_done(connected, "the slave", 60)
        status = await admin.brokers.ha_status()

        assert sorted(status) == [name, f"{name}:1"]
        assert (status[name].master, status[f"{name}:1"].master) == (True, False)
        assert len(status[name].slaves) == 1
        slave = status[f"{name}:1"].client
        assert slave is not None
        assert re.fullmatch(r"[0-9.]+:\d+", slave.master_addr)
        await admin.brokers.reset_master_flush_offset(overviews[1].address, 1)
        client = (await admin.brokers.ha_status())[f"{name}:1"].client
        assert client is not None
        assert client.master_flush_offset == 1
