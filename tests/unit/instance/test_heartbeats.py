"""Heartbeats: content, forms, order, failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    ConnectionLostError,
    NotConnectedError,
    SubscriptionError,
)
from rocketmq_aio.instance import heartbeats
from rocketmq_aio.instance.heartbeats import Heartbeats, check_accepted
from rocketmq_aio.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.remoting_client import RemotingClient
from tests.fakes.broker import FakeBroker
from tests.unit.remoting.clients import open_client
from tests.unit.remoting.until import until

HEART_BEAT = RequestCode.HEART_BEAT
CHANGED = Response(ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})


def described(expression: str = "*", version: int = 1, client_id: str = "me") -> HeartbeatData:
    subscription = SubscriptionData(topic="orders", sub_string=expression, sub_version=version)
    consumer = ConsumerData(
        group_name="billing",
        consume_type="CONSUME_ACTIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name="shop")],
        consumer_data_set=[consumer],
    )


class Beating:
    """Heartbeats to brokers; `data` is what they say."""

    def __init__(
        self, brokers: list[FakeBroker], heartbeats: Heartbeats, remoting: RemotingClient
    ) -> None:
        self.brokers = brokers
        self.heartbeats = heartbeats
        self.remoting = remoting
        self.data: HeartbeatData | None = described()

    def describe(self, groups: Collection[str] | None) -> HeartbeatData | None:
        data = self.data
        if data is None or groups is None:
            return data
        return msgspec.structs.replace(
            data,
            producer_data_set=[p for p in data.producer_data_set if p.group_name in groups],
            consumer_data_set=[c for c in data.consumer_data_set if c.group_name in groups],
        )

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]

    def reported(self, broker: FakeBroker | None = None) -> list[HeartbeatData]:
        """Bodies of the heartbeats that a broker received."""
        commands = (broker or self.broker).requests_of(HEART_BEAT)
        return [read_body(command.body, HeartbeatData) for command in commands]

    def groups(self) -> list[set[str]]:
        """The groups in each heartbeat that the first broker received."""
        return [
            {each.group_name for each in said.producer_data_set}
            | {each.group_name for each in said.consumer_data_set}
            for said in self.reported()
        ]

    def forms(self) -> list[str]:
        return ["short" if each.without_sub else "whole" for each in self.reported()]


@asynccontextmanager
async def heartbeats_env(
    count: int = 1, *, version: str = "5.5.0", v2: bool = True, timeout: float = 15.0
) -> AsyncIterator[Beating]:
    async with AsyncExitStack() as stack:
        brokers = [
            await stack.enter_async_context(FakeBroker(version=version)) for _ in range(count)
        ]
        config = ClientConfig(request_timeout_seconds=timeout)
        opened = await stack.enter_async_context(open_client(config))
        heartbeats = Heartbeats(
            opened.client,
            opened.tasks,
            describe=lambda groups: made.describe(groups),
            addresses=lambda: {broker.address for broker in brokers},
            short_form=v2,
        )
        made = Beating(brokers, heartbeats, opened.client)
        yield made


async def test_heartbeats_have_client_id_groups_and_subscriptions() -> None:
    async with heartbeats_env(3) as made:
        failures = await made.heartbeats.send_all()

        assert failures == {}
        for broker in made.brokers:
            (said,) = made.reported(broker)
            assert said.client_id == "me"
            assert [each.group_name for each in said.producer_data_set] == ["shop"]
            assert said.consumer_data_set == described().consumer_data_set


async def test_without_groups_there_is_no_heartbeat() -> None:
    async with heartbeats_env() as made:
        made.data = None

        assert await made.heartbeats.send_all() == {}
        assert made.broker.requests == []


async def test_a_broker_that_hangs_delays_no_other() -> None:
    async with heartbeats_env(3, timeout=60.0) as made:
        made.brokers[0].faults.drop("heartbeat", executed=False)
        telling = asyncio.create_task(made.heartbeats.send_all())
        for broker in made.brokers:
            await broker.wait_for(HEART_BEAT)
        assert not telling.done()
        await made.brokers[0].stop()
        failures = await telling

        assert {address: type(error) for address, error in failures.items()} == {
            made.brokers[0].address: ConnectionLostError
        }


async def test_heartbeats_report_a_broker_that_is_down_and_reach_the_others() -> None:
    async with heartbeats_env(2) as made:
        await made.brokers[0].stop()
        failures = await made.heartbeats.send_all()

        assert [type(error) for error in failures.values()] == [NotConnectedError]
        assert len(made.reported(made.brokers[1])) == 1


async def test_heartbeats_are_full_unless_short_ones_are_enabled() -> None:
    async with heartbeats_env(v2=False) as made:
        for _ in range(3):
            await made.heartbeats.send_all()

        assert made.forms() == ["whole"] * 3
        assert {each.heartbeat_fingerprint for each in made.reported()} == {0}


async def test_heartbeats_are_short_after_an_accepted_full_one() -> None:
    async with heartbeats_env() as made:
        for _ in range(3):
            await made.heartbeats.send_all()

        assert made.forms() == ["whole", "short", "short"]
        (fingerprint,) = {each.heartbeat_fingerprint for each in made.reported()}
        assert 0 < fingerprint < 2**31
        assert made.reported()[1].consumer_data_set[0].subscription_data_set == []


async def test_a_broker_before_5_gets_full_heartbeats_only() -> None:
    async with heartbeats_env(version="4.9.7") as made:
        for _ in range(3):
            await made.heartbeats.send_all()

        assert made.forms() == ["whole"] * 3


async def test_heartbeat_is_full_after_a_changed_subscription() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        made.data = described("paid")
        await made.heartbeats.send_all()
        await made.heartbeats.send_all()

        assert made.forms() == ["whole", "whole", "short"]
        fingerprints = [each.heartbeat_fingerprint for each in made.reported()]
        assert fingerprints[0] != fingerprints[1] == fingerprints[2]


async def test_the_fingerprint_is_the_same_for_all_members_of_a_group() -> None:
    async with heartbeats_env() as made:
        for data in (described(), described(version=2, client_id="another")):
            made.data = data
            await made.heartbeats.send_all()

        assert len({each.heartbeat_fingerprint for each in made.reported()}) == 1


async def test_heartbeat_is_full_after_the_broker_reports_a_changed_subscription() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        made.broker.faults.handle("heartbeat", CHANGED)
        for _ in range(3):
            await made.heartbeats.send_all()

        assert made.forms() == ["whole", "short", "whole", "short"]


async def test_heartbeat_is_full_on_a_new_connection() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        made.heartbeats.forget(made.broker.address)
        await made.heartbeats.send_all()

        assert made.forms() == ["whole", "whole"]


async def test_heartbeat_is_full_after_a_failure() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        made.broker.faults.refuse("heartbeat", 1, "broken")
        for _ in range(2):
            await made.heartbeats.send_all()

        assert made.forms() == ["whole", "short", "whole"]


async def test_a_heartbeat_about_a_group_leaves_the_others_out() -> None:
    async with heartbeats_env(2) as made:
        await made.heartbeats.send_all()
        assert await made.heartbeats.send_all("billing") == {}

        for broker in made.brokers:
            assert made.reported(broker)[1] == HeartbeatData(
                client_id="me", consumer_data_set=described().consumer_data_set
            )


async def test_a_broker_that_does_not_know_the_other_groups_gets_all() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all("billing")
        made.heartbeats.forget(made.broker.address)
        await made.heartbeats.send_all("billing")

        assert made.groups() == [{"billing", "shop"}] * 2


async def test_a_failed_heartbeat_about_a_group_is_followed_by_a_complete_one() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        made.broker.faults.refuse("heartbeat", 1, "broken")
        failures = await made.heartbeats.send_all("billing")
        await made.heartbeats.send_all("billing")

        assert [type(error) for error in failures.values()] == [BrokerError]
        assert made.groups() == [{"billing", "shop"}, {"billing"}, {"billing", "shop"}]


async def test_there_is_no_heartbeat_about_a_group_that_has_left() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        made.data = msgspec.structs.replace(described(), consumer_data_set=[])
        await made.heartbeats.send_all("shop")

        assert made.groups() == [{"billing", "shop"}, {"shop"}]


async def test_the_versions_of_brokers_are_remembered() -> None:
    async with heartbeats_env(version="4.9.7") as made:
        await made.heartbeats.send_all()

        assert made.heartbeats.broker_versions == {made.broker.address: 407}


async def test_a_rejection_is_returned_and_can_be_raised() -> None:
    async with heartbeats_env() as made:
        made.broker.faults.refuse("heartbeat", 26, "no such group")
        failures = await made.heartbeats.send_all()

        with pytest.raises(SubscriptionError, match="no such group"):
            check_accepted(failures)


async def test_an_unreachable_broker_does_not_count_as_a_rejection() -> None:
    check_accepted({"127.0.0.1:10911": NotConnectedError("127.0.0.1:10911", "down")})

    with pytest.raises(BrokerError):
        check_accepted({"127.0.0.1:10911": BrokerError(1, "no")})


async def test_heartbeats_continue_whatever_brokers_do() -> None:
    async with heartbeats_env() as made:
        made.broker.faults.refuse("heartbeat", 1, "broken", times=2)
        beats = asyncio.create_task(made.heartbeats.run(0.01))
        await made.broker.wait_for(HEART_BEAT, 5)
        beats.cancel()
        await asyncio.wait([beats])

        assert beats.cancelled()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(heartbeats, "CHECK_SECONDS", 0.01)


@asynccontextmanager
async def beating(made: Beating) -> AsyncIterator[None]:
    """Run heartbeats whose interval does not end."""
    task = asyncio.create_task(made.heartbeats.run(3600))
    yield
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.usefixtures("soon")
async def test_a_failed_heartbeat_is_retried_within_the_interval() -> None:
    async with heartbeats_env() as made, beating(made):
        made.broker.faults.refuse("heartbeat", 1, "broken", times=2)
        await made.broker.wait_for(HEART_BEAT, 3)
        for _ in range(10):
            await asyncio.sleep(0.01)

        assert len(made.reported()) == 3


async def look(made: Beating, broker: FakeBroker, times: int) -> None:
    """Return when `run` has sent *times* heartbeats to *broker*, which forgets the client."""
    for _ in range(times):
        await until(lambda: broker.address in made.heartbeats.registered())
        made.heartbeats.forget(broker.address)


@pytest.mark.usefixtures("soon")
async def test_a_rejected_heartbeat_is_not_repeated_before_its_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "Backoff", lambda *_: Backoff(120.0, 120.0))
    async with heartbeats_env(2) as made, beating(made):
        made.broker.faults.refuse("heartbeat", 1, "broken", times=None)
        await made.broker.wait_for(HEART_BEAT)
        await look(made, made.brokers[1], 5)

        assert len(made.reported()) == 1


@pytest.mark.usefixtures("soon")
async def test_an_accepted_heartbeat_resets_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[int] = []

    class Recorded(Backoff):
        def next_pause(self) -> float:
            before.append(self.failures)
            return super().next_pause()

    monkeypatch.setattr(heartbeats, "Backoff", lambda *_: Recorded(0.01, 0.01))
    async with heartbeats_env() as made, beating(made):
        for _ in range(2):
            made.broker.faults.refuse("heartbeat", 1, "broken", times=2)
            await look(made, made.broker, 1)

    assert before == [0, 1, 0, 1]


@pytest.mark.usefixtures("soon")
async def test_no_regular_heartbeat_waits_for_another() -> None:
    async with heartbeats_env(2) as made, beating(made):
        held = made.broker.faults.hold("heartbeat")
        await held.wait()
        await look(made, made.brokers[1], 5)
        held.release()
        await until(lambda: made.broker.address in made.heartbeats.registered())
        await look(made, made.brokers[1], 5)

        assert len(made.reported()) == 1


@pytest.mark.usefixtures("soon")
async def test_a_broker_gets_a_heartbeat_soon_after_its_connection_was_lost() -> None:
    async with heartbeats_env(2) as made:
        await made.heartbeats.send_all()
        async with beating(made):
            await made.broker.stop()
            await until(lambda: not made.remoting.is_connected(made.broker.address))
            await made.broker.start()
            await made.broker.wait_for(HEART_BEAT, 2)

        assert len(made.reported(made.brokers[1])) == 1


@pytest.mark.usefixtures("soon")
async def test_a_broker_that_is_new_in_the_routes_gets_a_heartbeat() -> None:
    async with heartbeats_env(2) as made:
        new = made.brokers.pop()
        await made.heartbeats.send_all()
        async with beating(made):
            made.brokers.append(new)
            await new.wait_for(HEART_BEAT)

        assert len(made.reported()) == 1


@pytest.mark.usefixtures("soon")
async def test_a_broker_that_hangs_delays_no_retry_of_another() -> None:
    async with heartbeats_env(2, timeout=60.0) as made:
        made.brokers[1].faults.drop("heartbeat", executed=False)
        made.broker.faults.refuse("heartbeat", 1, "broken")
        async with beating(made):
            await made.broker.wait_for(HEART_BEAT, 2)

        assert len(made.reported(made.brokers[1])) == 1


async def test_results_convert_to_json() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        (command,) = made.broker.requests_of(HEART_BEAT)
        said = msgspec.json.decode(command.body)

        assert said["clientID"] == "me"
        (subscription,) = said["consumerDataSet"][0]["subscriptionDataSet"]
        assert (subscription["topic"], subscription["subString"]) == ("orders", "*")


async def test_concurrent_heartbeats_end_with_the_newest() -> None:
    async with heartbeats_env() as made:
        go = asyncio.Event()

        async def slowly(*_: object) -> Response:
            await go.wait()
            return Response()

        made.broker.faults.handle("heartbeat", slowly)
        first = asyncio.create_task(made.heartbeats.send_all())
        await made.broker.wait_for(HEART_BEAT)
        made.data = described("new")
        second = asyncio.create_task(made.heartbeats.send_all())
        await asyncio.sleep(0)
        assert len(made.reported()) == 1
        go.set()
        await asyncio.gather(first, second)

    expressions = [
        reported.consumer_data_set[0].subscription_data_set[0].sub_string
        for reported in made.reported()
    ]
    assert expressions == ["*", "new"]


async def test_groups_of_waiting_callers_share_one_heartbeat() -> None:
    async with heartbeats_env() as made:
        go = asyncio.Event()

        async def slowly(*_: object) -> Response:
            await go.wait()
            return Response()

        await made.heartbeats.send_all()
        made.broker.faults.handle("heartbeat", slowly)
        sent = [asyncio.create_task(made.heartbeats.send_all("shop"))]
        await made.broker.wait_for(HEART_BEAT, 2)
        groups = ("billing", "shop", "billing")
        sent += [asyncio.create_task(made.heartbeats.send_all(group)) for group in groups]
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*sent) == [{}] * 4

        assert made.groups() == [{"billing", "shop"}, {"shop"}, {"billing", "shop"}]


async def test_a_cancelled_caller_takes_no_group_of_another_caller_away() -> None:
    async with heartbeats_env() as made:
        await made.heartbeats.send_all()
        held = made.broker.faults.hold("heartbeat")
        first = asyncio.create_task(made.heartbeats.send_all("shop"))
        await held.wait()
        second = asyncio.create_task(made.heartbeats.send_all("shop"))
        third = asyncio.create_task(made.heartbeats.send_all("billing"))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        held.release()
        assert await third == {}

        assert made.groups()[1:] == [{"shop"}, {"billing", "shop"}]


async def test_the_heartbeat_of_a_cancelled_caller_is_not_overtaken() -> None:
    async with heartbeats_env() as made:
        held = made.broker.faults.hold("heartbeat")
        caller = asyncio.create_task(made.heartbeats.send_all())
        await held.wait()
        caller.cancel()
        await asyncio.wait([caller])
        assert made.heartbeats.lock(made.broker.address).statistics().locked
        held.release()
        async with made.heartbeats.lock(made.broker.address):
            pass

        assert caller.cancelled()
        assert made.heartbeats.broker_versions  # of the response


async def test_waiting_callers_share_one_heartbeat() -> None:
    async with heartbeats_env() as made:
        go = asyncio.Event()

        async def slowly(*_: object) -> Response:
            await go.wait()
            return Response()

        made.broker.faults.handle("heartbeat", slowly)
        first = asyncio.create_task(made.heartbeats.send_all())
        await made.broker.wait_for(HEART_BEAT)
        others = [asyncio.create_task(made.heartbeats.send_all()) for _ in range(10)]
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(first, *others) == [{}] * 11

        assert len(made.reported()) == 2


async def test_callers_do_not_wait_for_heartbeats_that_end_with_the_client() -> None:
    async with heartbeats_env() as made:
        held = made.broker.faults.hold("heartbeat")
        sent = made.heartbeats.start(made.broker.address)
        await made.broker.wait_for(HEART_BEAT)
        waiting = made.heartbeats.start(made.broker.address)
        await made.heartbeats._tasks.close()
        later = made.heartbeats.start(made.broker.address)
        held.release()

        assert [type(each.result()) for each in (sent, waiting, later)] == [ClosedError] * 3


async def test_a_slow_broker_costs_two_tasks_however_many_callers_wait() -> None:
    def tasks() -> int:
        return sum("heartbeat-" in each.get_name() for each in asyncio.all_tasks())

    async with heartbeats_env() as made:
        address = made.broker.address
        held = made.broker.faults.hold("heartbeat")
        started = [made.heartbeats.start(address)]
        await held.wait()
        started += [made.heartbeats.start(address) for _ in range(1000)]
        await asyncio.sleep(0)
        assert tasks() == 2
        held.release()
        assert await asyncio.gather(*started) == [None] * 1001

        assert len(made.reported()) == 2
