"""Consumer groups of a broker: create, update, delete and list their settings."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rocketmq_aio.embedded.broker.attributes import OF_GROUPS, changed_attributes
from rocketmq_aio.embedded.broker.state import (
    BrokerState,
    ErrorResponse,
    Page,
    discard_keys,
    is_group_name,
)
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.bodies import MAX_QUEUES, Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header
from rocketmq_aio.protocol.requests.admin import DeleteGroup, SubscriptionGroupBody

# Groups of every broker.
SYSTEM_GROUPS: Final = """TOOLS_CONSUMER FILTERSRV_CONSUMER SELF_TEST_C_GROUP CID_ONS-HTTP-PROXY
    CID_ONSAPI_PULL CID_ONSAPI_PERMISSION CID_ONSAPI_OWNER CID_SYS_RMQ_TRANS""".split()


class OfGroup(Header, frozen=True):
    """Header of a request about a group, or about its progress in a topic."""

    group: str
    topic: str = ""


class GroupConfigList(Body, frozen=True):
    """Body of the request that creates several groups."""

    group_config_list: list[dict[str, Any]]


class GroupProcessor:
    """Administers the consumer groups of a broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        for name in SYSTEM_GROUPS:
            state.create_group(name)

    @reads(GroupConfigList, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, version=5)
    def put_all(self, body: GroupConfigList) -> None:
        for config in body.group_config_list:
            self.put(config)

    @reads(dict[str, Any], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def put(self, wanted: dict[str, Any]) -> None:
        name = wanted.get("groupName") or ""
        if not is_group_name(name):
            raise self._state.invalid("the specified group is not valid")
        before = self._state.groups.get(name)
        signed = wanted.pop("attributes", None) or {}
        try:
            body = msgspec.convert(wanted, SubscriptionGroupBody)
        except msgspec.ValidationError as error:
            raise ErrorResponse(f"com.alibaba.fastjson.JSONException: {error}") from None
        if body.retry_queue_nums > MAX_QUEUES:  # real brokers accept any number
            remark = f"a retry topic of an embedded broker has at most {MAX_QUEUES} queues"
            raise ErrorResponse(remark)
        attributes: dict[str, str] = {}
        if self._state.version.is_5:
            attributes = changed_attributes(OF_GROUPS, before and before["attributes"], signed)
        config = self._state.create_group(name)
        config.update({key: value for key, value in wanted.items() if key in config})
        if self._state.version.is_5:
            config["attributes"] = attributes
        self._state.changes += 1

    @reads(DeleteGroup)
    def delete(self, header: DeleteGroup) -> None:
        self._state.groups.pop(header.group_name, None)
        self._state.changes += 1
        clean = header.clean_offset if self._state.version.is_5 else header.remove_offset
        if clean:
            for offsets in (self._state.committed, self._state.pulled):
                discard_keys(offsets, lambda key: key[0] == header.group_name)

    @reads(OfGroup, OtherCode.GET_SUBSCRIPTIONGROUP_CONFIG, version=5)
    def config(self, header: OfGroup) -> object:
        self._state.ensure_group(header.group)
        return self._state.group(header.group, "No group in this broker. group: {}")

    @reads(Page, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def configs(self, page: Page) -> object:
        groups, is_5 = self._state.groups, self._state.version.is_5
        table = {name: groups[name] for name in page.of(groups)}
        body = {"subscriptionGroupTable": table, "dataVersion": self._state.data_version()}
        body |= {"forbiddenTable": {}} if is_5 else {}
        ext = {"totalGroupNum": str(len(groups))} if is_5 else {}
        return Response(ext=ext, body=msgspec.json.encode(body))
