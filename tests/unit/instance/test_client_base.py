"""ClientBase: start, close, failure, cancellation."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from collections.abc import Callable

import anyio
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import (
    ClosedError,
    ConfigError,
    NameServerUnavailableError,
    NotRunningError,
)
from rocketmq_aio.instance import client_base as member_module, client_instance as instance_module
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.instance.client_env import ConsumerClient, PlainClient, nothing_left
from tests.unit.remoting.until import settle, until

STEPS = 500  # turns of the loop, far more than a start or a close takes


def config_of(cluster: FakeCluster) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv)


@pytest.fixture
def slow_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close waits for brokers longer than these tests take."""
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 50.0)
    monkeypatch.setattr(instance_module, "UNREGISTER_SECONDS", 50.0)


# --- states --------------------------------------------------------------------------------------


async def test_it_works_between_start_and_close_only() -> None:
    async with FakeCluster() as cluster:
        member = PlainClient(config_of(cluster))
        with pytest.raises(NotRunningError, match="not started"):
            member.work()
        async with member:
            member.work()
        with pytest.raises(ClosedError):
            member.work()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_it_cannot_be_copied_or_pickled(copied: Callable[[object], object]) -> None:
    async with FakeCluster() as cluster:
        not_started = PlainClient(config_of(cluster))
        async with PlainClient(config_of(cluster)) as member:
            for client in (not_started, member, member.client):
                with pytest.raises(TypeError, match="make one in the process that uses it"):
                    copied(client)


def test_it_needs_asyncio_and_can_be_started_there_after_the_error() -> None:
    async def use() -> None:
        async with FakeCluster() as cluster:
            member = PlainClient(config_of(cluster))
            await asyncio.to_thread(start_without_asyncio, member)
            await asyncio.to_thread(start_without_asyncio, member.client)
            async with member:
                member.work()

    def start_without_asyncio(client: PlainClient | MQClientInstance) -> None:
        with pytest.raises(NotRunningError, match=r"needs an asyncio event loop.*trio"):
            client.start().send(None)  # as trio does

    asyncio.run(use())


async def test_it_is_started_once() -> None:
    async with FakeCluster() as cluster, PlainClient(config_of(cluster)) as member:
        with pytest.raises(NotRunningError, match=r"is running: .* once; make another"):
            await member.start()

        member.work()


async def test_while_it_starts_it_cannot_be_used_or_started_again() -> None:
    async with FakeCluster() as cluster:
        member = PlainClient(config_of(cluster))
        starting = asyncio.create_task(member.start())
        await settle(turns=1)
        with pytest.raises(NotRunningError, match="still starting"):
            member.work()
        with pytest.raises(NotRunningError, match="still starting"):
            await member.start()
        await starting
        await member.close()


async def test_once_closed_it_stays_closed() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        member = PlainClient(config_of(cluster))
        await member.close()

        with pytest.raises(ClosedError, match="make a new one"):
            await member.start()
        assert (member.opened, member.shut) == (0, 0)


async def test_concurrent_and_repeated_closes_are_one_close() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        member = PlainClient(config_of(cluster))
        await member.start()
        await asyncio.gather(member.close(), member.close(), member.close())
        await member.close()

        assert member.shut == 1


async def test_start_and_close_may_come_from_different_tasks() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        member = PlainClient(config_of(cluster))
        await asyncio.create_task(member.start())
        member.work()
        await asyncio.create_task(member.close())


async def test_it_belongs_to_one_event_loop() -> None:
    async def use_elsewhere() -> None:
        with pytest.raises(NotRunningError, match="another event loop"):
            member.work()
        with pytest.raises(NotRunningError, match="another event loop"):
            await member.close()

    async with FakeCluster() as cluster, PlainClient(config_of(cluster)) as member:
        await asyncio.to_thread(asyncio.run, use_elsewhere())


def test_after_the_end_of_its_loop_the_error_names_the_loop() -> None:
    async def start() -> PlainClient:
        async with FakeCluster() as cluster:
            member = PlainClient(config_of(cluster))
            await member.start()
            return member

    async def use() -> None:
        with pytest.raises(NotRunningError, match="ended with its event loop, which is closed"):
            member.work()
        with pytest.raises(NotRunningError, match="ended with its event loop, which is closed"):
            member.client.check_running()
        with pytest.raises(NotRunningError, match="ended with its event loop, which is closed"):
            await member.close()

    member = asyncio.run(start())
    asyncio.run(use())


def test_a_program_that_forgets_to_close_ends_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def forgetful() -> None:
        async with FakeCluster(topics={"orders": 1}) as cluster:
            member = ConsumerClient(config_of(cluster), "billing")
            await member.start()
            assert len(cluster.broker.connections) == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(forgetful())

    assert caplog.text == ""


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["", "  ", "a b", "g" * 256, "DEFAULT_PRODUCER", None, 5])
def test_an_invalid_group_raises_in_the_constructor(group: object) -> None:
    with pytest.raises(ConfigError) as caught:
        PlainClient(ClientConfig(namesrv="127.0.0.1:9876"), group)  # type: ignore[arg-type]

    assert caught.value.setting == "group"


def test_namesrv_and_client_are_exclusive() -> None:
    config = ClientConfig(namesrv="127.0.0.1:9876")
    with pytest.raises(ConfigError, match="either"):
        ClientBase("shop", namesrv="127.0.0.1:9876", client=config)
    with pytest.raises(ConfigError, match="MQClientInstance"):
        ClientBase("shop", namesrv=None, client="127.0.0.1:9876")  # type: ignore[arg-type]


def test_a_missing_namesrv_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_NAMESRV", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        ClientBase("shop", namesrv=None, client=None)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")

    assert ClientBase("shop", namesrv=None, client=None).client.config.namesrv == "127.0.0.1:9876"


# --- starts that fail ----------------------------------------------------------------------------


async def test_a_start_without_name_servers_fails_and_leaves_nothing() -> None:
    async with FakeBroker() as broker:
        dead = broker.address
    async with nothing_left():
        member = PlainClient(ClientConfig(namesrv=dead))
        with pytest.raises(NameServerUnavailableError) as caught:
            await member.start()

        assert set(caught.value.addresses) == {dead}
        with pytest.raises(ClosedError):
            member.work()
        await member.close()


async def test_start_raises_if_the_name_server_is_not_ready() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        cluster.faults.refuse("route", 1, "name server not ready", times=None)
        with pytest.raises(NameServerUnavailableError, match="not ready"):
            await PlainClient(config_of(cluster)).start()


async def test_a_cluster_that_creates_no_topics_is_no_reason_not_to_start() -> None:
    async with FakeCluster() as cluster:
        del cluster.broker.topics["TBW102"]
        async with PlainClient(config_of(cluster)) as member:
            member.work()


async def test_a_start_cancelled_at_any_step_leaves_nothing() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            member = ConsumerClient(config_of(cluster), "billing")
            starting = asyncio.create_task(member.start())
            await settle(turns=steps)
            starting.cancel()
            await asyncio.wait([starting])
            await member.close()
            if not starting.cancelled():
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


@pytest.mark.usefixtures("slow_farewells")
async def test_closing_at_any_step_of_a_start_ends_it_and_leaves_nothing() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            member = ConsumerClient(config_of(cluster), "billing")
            starting = asyncio.create_task(member.start())
            await settle(turns=steps)
            await member.close()
            await asyncio.wait([starting], timeout=15)

            with pytest.raises(ClosedError):
                member.work()
            if starting.exception() is None:
                break
            assert isinstance(starting.exception(), ClosedError)

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


@pytest.mark.usefixtures("slow_farewells")
async def test_a_member_closed_while_it_starts_is_not_left_in_a_shared_instance() -> None:
    async with FakeCluster() as cluster, MQClientInstance(config_of(cluster)) as client:
        steps = 0
        for steps in range(STEPS):
            member = PlainClient(client)
            starting = asyncio.create_task(member.start())
            await settle(turns=steps)
            await member.close()
            await asyncio.wait([starting], timeout=15)

            assert client._producers == {}
            if starting.exception() is None:
                break

        assert 1 < steps < STEPS - 1, "the sweep did not reach the end"
        client.check_running()


# --- closes that are disturbed -------------------------------------------------------------------


async def test_a_close_cancelled_at_any_step_still_happens() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            member = ConsumerClient(config_of(cluster), "billing")
            await member.start()
            closing = asyncio.create_task(member.close())
            await settle(turns=steps)
            closing.cancel()
            await asyncio.wait([closing])
            await member.close()

            assert cluster.broker.members.groups == {}
            if not closing.cancelled():
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_a_deadline_around_the_block_lets_it_close() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, nothing_left():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), ConsumerClient(config_of(cluster), "billing"):
                await asyncio.Event().wait()

        await until(lambda: cluster.broker.members.groups == {})


async def test_a_cancelled_scope_around_the_block_waits_for_the_close() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, nothing_left():
        with anyio.move_on_after(0.1) as scope:
            async with ConsumerClient(config_of(cluster), "billing"):
                await anyio.sleep_forever()

        assert scope.cancelled_caught
        assert cluster.broker.members.groups == {}


async def test_a_close_that_takes_too_long_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 0.05)
    async with FakeCluster() as cluster, nothing_left():
        member = PlainClient(config_of(cluster))
        member.may_shut = asyncio.Event()
        await member.start()
        with caplog.at_level(logging.WARNING, "rocketmq_aio"):
            await asyncio.wait_for(member.close(), 15)

        assert "close_timed_out" in caplog.text


async def test_a_failed_close_raises_once_and_releases_everything() -> None:
    class Failing(PlainClient):
        async def _shut(self) -> None:
            raise LookupError("could not leave")

    async with FakeCluster() as cluster, nothing_left():
        member = Failing(config_of(cluster))
        await member.start()
        with pytest.raises(LookupError):
            await member.close()
        await member.close()


@pytest.mark.parametrize("failing", ["client", "first hook"])
async def test_a_failing_close_closes_every_lifecycle_hook(failing: str) -> None:
    closed: list[str] = []

    class Hook:
        def __init__(self, name: str) -> None:
            self.name = name

        def made_for(self, instance: MQClientInstance, group: str) -> Hook:
            return self

        async def open(self) -> None: ...

        async def close(self) -> None:
            closed.append(self.name)
            if self.name == failing:
                raise LookupError(failing)

    class Failing(PlainClient):
        async def _shut(self) -> None:
            await super()._shut()
            if failing == "client":
                raise LookupError(failing)

    async with FakeCluster() as cluster, nothing_left():
        member = Failing(config_of(cluster))
        member._bind_hooks([Hook("first hook"), Hook("second hook")])
        await member.start()
        with pytest.raises(LookupError, match=failing):
            await member.close()

        assert closed == ["first hook", "second hook"]


async def test_closing_a_member_leaves_a_shared_instance_running() -> None:
    async with FakeCluster() as cluster, MQClientInstance(config_of(cluster)) as client:
        async with PlainClient(client), PlainClient(client, "other"):
            pass

        client.check_running()


@pytest.mark.usefixtures("slow_farewells")
async def test_an_instance_that_closes_first_does_not_keep_its_members_from_closing() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, nothing_left():
        client = MQClientInstance(config_of(cluster))
        await client.start()
        member = ConsumerClient(client, "billing")
        await member.start()
        await client.close()

        await asyncio.wait_for(member.close(), 15)


@pytest.mark.usefixtures("slow_farewells")
async def test_a_background_task_may_close_the_member_it_belongs_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster() as cluster, nothing_left():
        member = PlainClient(config_of(cluster))
        await member.start()
        with caplog.at_level(logging.ERROR, "rocketmq_aio"):
            member.client.tasks.spawn(member.close, name="a listener that has seen enough")
            await until(lambda: member.shut == 1)
            await asyncio.wait_for(member.close(), 15)

        assert caplog.text == ""
