"""Topic publish info: round-robin, targets, routes of new topics."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import ConfigError, RouteNotFoundError
from rocketmq_aio.instance.routes import TopicRoute, read_route
from rocketmq_aio.model.address import vip_address
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.queue_selectors import select_by_hash
from rocketmq_aio.producer.topic_publish_info import (
    TopicPublishInfo,
    find_publish_info,
    why_unwritable,
)
from rocketmq_aio.protocol.bodies import TopicRouteData
from tests.unit.instance.route_data import READ, A, B, broker, queues, route

CONFIG = ProducerConfig()
TWO_BROKERS = route(queues(), queues("broker-b"), broker(master=A), broker("broker-b", master=B))
MESSAGE = Message("orders", b"x")


class Routes:
    """Routes that are known."""

    def __init__(self, **known: TopicRouteData) -> None:
        self._known = known
        self.later: dict[str, TopicRouteData] = {}

    async def get(self, topic: str) -> TopicRoute:
        if topic not in self._known:
            raise RouteNotFoundError(topic, "the name servers know no such topic")
        return read_route(topic, self._known[topic])

    async def fetch(self, topic: str) -> TopicRoute:
        return await self.get(topic)

    def known(self, topic: str) -> TopicRoute | None:
        return read_route(topic, self._known[topic]) if topic in self._known else None

    async def wait_for_newer(self, known: TopicRoute) -> TopicRoute:
        if known.topic in self.later:
            self._known[known.topic] = self.later.pop(known.topic)
            return await self.get(known.topic)
        if known.ordered_queues:
            await asyncio.get_running_loop().create_future()  # nothing changes
        return known


def publish(
    data: TopicRouteData = TWO_BROKERS, client: ClientConfig | None = None
) -> TopicPublishInfo:
    return TopicPublishInfo(read_route("orders", data), "shop", CONFIG, client)


async def find(topic: str, **known: TopicRouteData) -> TopicPublishInfo:
    return await find_in(Routes(**known), topic)


async def find_in(routes: Routes, topic: str) -> TopicPublishInfo:
    return await find_publish_info(routes, topic, "shop", CONFIG)  # type: ignore[arg-type]  # no table


def test_queues_are_used_round_robin() -> None:
    made = publish()
    used = [made.next_target().queue for _ in range(8)]

    assert used[:4] == used[4:]
    assert set(used) == set(made.queues)


def test_round_robin_starts_at_a_random_queue() -> None:
    assert len({publish().next_target().queue for _ in range(100)}) == 4


def test_a_failed_broker_is_avoided_while_another_is_left() -> None:
    made = publish()
    brokers = Counter(
        made.next_target_avoiding(frozenset({"broker-a"})).queue.broker_name for _ in range(20)
    )

    assert brokers == {"broker-b": 20}


def test_any_queue_is_used_when_all_brokers_failed() -> None:
    made = publish()
    failed = frozenset({"broker-a", "broker-b"})

    assert made.next_target_avoiding(failed).queue in made.queues


def test_a_target_has_the_address_of_the_master() -> None:
    made = publish()

    assert {made.target(queue).address for queue in made.queues} == {A, B}


def test_vip_channel_sends_to_the_second_port() -> None:
    made = publish(client=ClientConfig(vip_channel=True))
    targets = [made.target(queue) for queue in made.queues]

    assert {target.master for target in targets} == {A, B}
    assert {(target.address, target.master) for target in targets} == {
        (vip_address(A), A),
        (vip_address(B), B),
    }
    made.exclude(frozenset({vip_address(A)}))
    assert {made.next_target().broker_name for _ in range(8)} == {"broker-b"}


def test_unit_mode_is_part_of_the_send_header() -> None:
    queue = publish().queues[0]

    assert publish(client=ClientConfig(unit_mode=True)).header(queue).unit_mode is True
    assert publish(client=ClientConfig()).header(queue).unit_mode is False


@pytest.mark.parametrize("queue", [None, "orders/broker-a/0", MessageQueue("other", "broker-a", 0)])
def test_a_queue_of_another_topic_raises(queue: MessageQueue) -> None:
    with pytest.raises(ConfigError) as caught:
        publish().target(queue)

    assert caught.value.setting == "queue"


def test_a_target_without_a_master_has_the_broker_name_as_address() -> None:
    one_without_master = route(
        queues(), queues("broker-b"), broker(master=A), broker("broker-b", replica=B)
    )
    target = publish(one_without_master, ClientConfig(vip_channel=True)).target(
        MessageQueue("orders", "broker-b", 0)
    )

    assert (target.address, target.master) == ("broker-b", "broker-b")


def test_a_queue_of_a_broker_outside_the_route_raises() -> None:
    with pytest.raises(RouteNotFoundError, match="broker-z"):
        publish().target(MessageQueue("orders", "broker-z", 0))


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("orders", -1008770331),
        ("polygenelubricants", -(2**31)),
        ("訂單", 1117164),
        (0, 0),  # Integer
        (42, 42),
        (-1, -1),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
        (2**31, -(2**31)),  # Long
        (20_261_127_000_042, 1766268295),
        (-(2**31) - 1, -(2**31)),
        (2**63 - 1, -(2**31)),
        (-(2**63), -(2**31)),
    ],
)
def test_select_by_hash_chooses_the_queue_of_the_java_client(
    key: str | int, java_hash: int
) -> None:
    chosen = [MessageQueue("orders", "broker-a", number) for number in range(7)]

    assert select_by_hash(key)(chosen, MESSAGE).queue_id == abs(java_hash) % 7


async def test_an_existing_topic_uses_its_own_queues() -> None:
    found = await find("orders", orders=TWO_BROKERS, TBW102=route(queues(write=8)))

    assert len(found.queues) == 4


async def test_a_topic_to_be_created_uses_the_queues_of_the_template() -> None:
    template = route(queues(write=8), broker(master=A))
    found = await find("later", TBW102=template)

    assert found.queues == tuple(MessageQueue("later", "broker-a", n) for n in range(4))
    assert found.topic == "later"


async def test_a_topic_created_during_the_lookup_uses_its_own_queues() -> None:
    class CreatedMeanwhile(Routes):
        async def get(self, topic: str) -> TopicRoute:
            if topic == "TBW102":
                self._known["later"] = TWO_BROKERS
            return await super().get(topic)

    found = await find_in(
        CreatedMeanwhile(TBW102=route(queues(write=8), broker(master=A))), "later"
    )

    assert {queue.broker_name for queue in found.queues} == {"broker-a", "broker-b"}


async def test_a_topic_that_cannot_be_created_is_not_found() -> None:
    with pytest.raises(RouteNotFoundError, match="create it") as caught:
        await find("later")

    assert caught.value.topic == "later"


async def test_a_read_only_topic_raises() -> None:
    with pytest.raises(RouteNotFoundError, match="read-only"):
        await find("orders", orders=route(queues(perm=READ), broker(master=A)))


@pytest.mark.parametrize(
    "headless",
    [route(queues(), broker(replica=A)), route(queues(perm=READ), broker(acting=True, master=A))],
    ids=["slave", "acting master"],
)
@pytest.mark.parametrize("topic", ["orders", "later"])
async def test_find_waits_for_a_master(topic: str, headless: TopicRouteData) -> None:
    back = route(queues(), broker(master=B))
    known = "orders" if topic == "orders" else CONFIG.template_topic
    routes = Routes(**{known: headless})
    routes.later[known] = back

    assert {(await find_in(routes, topic)).next_target().address} == {B}


async def test_a_read_only_route_is_fetched_once_more() -> None:
    routes = Routes(orders=route(queues(perm=READ), broker(master=A)))
    routes.later["orders"] = route(queues(), broker(master=A))

    assert (await find_in(routes, "orders")).queues


def test_a_route_without_a_master_names_its_brokers() -> None:
    headless = read_route("orders", route(queues(), broker(replica=A)))

    assert "(broker-a) have no master now" in why_unwritable(headless)
