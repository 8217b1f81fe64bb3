"""Routes of name servers."""

from __future__ import annotations

from rocketmq_aio.protocol.bodies import read_route
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from tests.fakes.conformance.case_env import QUEUES, Case, CaseEnv, is_unanswered
from tests.fakes.raw_client import RawClient

OLD_CLIENT = 399  # 4.9.3
NO_SUCH_CODE = 29_999


async def a_route_names_brokers_addresses_and_queues(env: CaseEnv) -> None:
    async with RawClient(env.namesrv) as client:
        answer = await client.ask(GetRouteInfo(topic=env.topic))
    route = read_route(answer.body)

    assert answer.code == 0
    assert env.broker in [each.broker_addrs[0] for each in route.broker_datas]
    assert {each.broker_name for each in route.queue_datas} == {
        each.broker_name for each in route.broker_datas
    }
    for queues in route.queue_datas:
        assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (QUEUES, QUEUES, 6)


async def routes_for_clients_before_4_9_4_have_bare_numbers_as_keys(env: CaseEnv) -> None:
    async with RawClient(env.namesrv, version=OLD_CLIENT) as client:
        answer = await client.ask(GetRouteInfo(topic=env.topic))

    assert b'"brokerAddrs":{0:"' in answer.body


async def routes_are_standard_json_for_newer_clients_and_on_request(env: CaseEnv) -> None:
    async with RawClient(env.namesrv) as client:
        newer = await client.ask(GetRouteInfo(topic=env.topic))
    async with RawClient(env.namesrv, version=OLD_CLIENT) as client:
        asked = GetRouteInfo(topic=env.topic, accept_standard_json_only=True)
        older = await client.ask(asked)

    assert b'"brokerAddrs":{"0":"' in newer.body
    assert b'"brokerAddrs":{"0":"' in older.body


async def an_unknown_topic_has_no_route(env: CaseEnv) -> None:
    async with RawClient(env.namesrv) as client:
        answer = await client.ask(GetRouteInfo(topic=f"{env.topic}-unknown"))

    assert answer.code == 17
    assert answer.remark is not None
    assert answer.remark.startswith("No topic route info in name server for the topic: ")


async def name_servers_before_5_leave_unknown_codes_unanswered(env: CaseEnv) -> None:
    async with RawClient(env.namesrv) as client:
        opaque = client.send_fields(NO_SUCH_CODE)
        if env.is_5:
            assert (await client.answer(opaque)).code == 3
        else:
            assert await is_unanswered(client, opaque)


CASES: tuple[Case, ...] = (
    a_route_names_brokers_addresses_and_queues,
    routes_for_clients_before_4_9_4_have_bare_numbers_as_keys,
    routes_are_standard_json_for_newer_clients_and_on_request,
    an_unknown_topic_has_no_route,
    name_servers_before_5_leave_unknown_codes_unanswered,
)
