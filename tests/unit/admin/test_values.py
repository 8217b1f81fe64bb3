"""AdminClient: results, settings and offset message ids."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rocketmq_aio.admin.group_settings import changed_body, new_body
from rocketmq_aio.admin.messages import read_offset_id
from rocketmq_aio.admin.results import (
    BrokerRuntime,
    GroupProgress,
    QueueProgress,
    TopicConfig,
    perm_bits,
    perm_text,
    progress_of,
    time_of,
)
from rocketmq_aio.admin.server_results import read_properties, write_properties
from rocketmq_aio.admin.topic_settings import changed, checked, new_topic, to_request
from rocketmq_aio.admin.trace_events import trace_events
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.requests.admin import ConsumeStats, OffsetWrapper
from rocketmq_aio.testing import received_message


@pytest.mark.parametrize("bits", range(8))
def test_permissions_are_letters(bits: int) -> None:
    assert perm_bits(perm_text(bits)) == bits


def test_results_become_json_with_names_of_python() -> None:
    queue = QueueProgress(
        queue=MessageQueue("orders", "broker-a", 1),
        broker_offset=9,
        consumer_offset=4,
        last_time=time_of(1_767_225_600_000),
        pull_offset=6,
    )
    progress = GroupProgress(group="billing", queues=(queue,), silent={"client": "why"})

    plain = progress.to_dict()

    assert json.loads(json.dumps(plain)) == plain
    assert (plain["lag"], plain["queues"][0]["lag"]) == (5, 5)
    assert (plain["in_flight"], plain["queues"][0]["in_flight"]) == (2, 2)
    assert plain["queues"][0]["queue"] == {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 1,
    }
    assert plain["queues"][0]["last_time"] == "2026-01-01T00:00:00+00:00"


def test_a_queue_without_a_commit_lags_by_its_messages() -> None:
    """Brokers return -1 for queues of static topics."""
    key = '{"topic":"orders","brokerName":"broker-a","queueId":0}'
    none = OffsetWrapper(broker_offset=3, consumer_offset=-1, pull_offset=-1)

    progress = progress_of("billing", [ConsumeStats(offset_table={key: none})])

    assert (progress.queues[0].consumer_offset, progress.lag, progress.in_flight) == (0, 3, 0)


def test_no_time_is_none() -> None:
    assert (time_of(0), time_of(-1)) == (None, None)
    assert (time_of(2**63 - 1), time_of(253_402_300_800_000)) == (None, None)
    assert time_of(1) == datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)


def test_repr_of_broker_runtime_counts_the_statistics() -> None:
    stats = {"brokerVersionDesc": "V5_5_0", "putTps": "1"}
    runtime = BrokerRuntime(broker_name="broker-a", address="10.0.0.1:10911", stats=stats)

    assert repr(runtime) == "BrokerRuntime('broker-a', '10.0.0.1:10911', 'V5_5_0', 2 stats)"


def test_a_new_topic_has_equal_read_and_write_queues() -> None:
    made = new_topic("orders", "broker-a", checked({"read_queues": 3}))

    assert (made.read_queues, made.write_queues) == (3, 3)
    assert new_topic("orders", "broker-a", {}).write_queues == 8


def test_only_attributes_that_were_named_are_sent() -> None:
    there = TopicConfig(
        topic="orders",
        broker_name="broker-a",
        read_queues=1,
        write_queues=1,
        attributes={"a": "1", "b": "2"},
        sys_flag=2,
    )
    named = {"b": None, "c": "3"}

    request = to_request(changed(there, {"attributes": named}), named)

    assert changed(there, {"attributes": named}).attributes == {"a": "1", "c": "3"}
    assert (request.attributes, request.topic_sys_flag) == ("-b,+c=3", 2)


def test_update_keeps_other_fields_of_a_group() -> None:
    there = {"groupName": "billing", "groupRetryPolicy": {"type": "EXPONENTIAL"}, "attributes": {}}

    body = changed_body(there, {"enabled": False})

    assert body == {
        "groupName": "billing",
        "groupRetryPolicy": {"type": "EXPONENTIAL"},
        "consumeEnable": False,
    }
    named = new_body("billing", {"attributes": {"a": "1", "b": None}})["attributes"]
    assert named == {"+a": "1", "-b": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7F00000100002A9F0000000000001F40", ("127.0.0.1:10911", 8000)),
        (f"{1:032X}00002A9F0000000000000001", ("[::1]:10911", 1)),
    ],
)
def test_an_offset_id_has_address_and_offset(text: str, expected: tuple[str, int]) -> None:
    assert read_offset_id(text) == expected


@pytest.mark.parametrize("text", ["", "7F", "xy" * 16, "é" * 16])
def test_other_text_is_no_offset_id(text: str) -> None:
    with pytest.raises(ConfigError):
        read_offset_id(text)


def test_numbers_of_a_trace_record_that_are_too_long_are_left_out() -> None:
    digits = "9" * 5000  # int() refuses them
    record = (
        f"SubAfter\x01request\x01ID1\x01{digits}\x01true\x01key\x010\x01{digits}\x01billing\x02"
    )
    (event,) = trace_events(received_message(Message("traces", record.encode())), "ID1")

    assert (event.cost_millis, event.time, event.group) == (None, None, "billing")


@pytest.mark.parametrize("old", [False, True])
def test_a_trace_record_may_lack_the_offset_id(*, old: bool) -> None:
    offset_id = "" if old else "7F00000100002A9F0000000000000001\x01"
    record = (
        "Pub\x0117\x01region\x01shop\x01orders\x01ID1\x01paid\x01key\x01127.0.0.1:10911\x013\x012\x010"
        f"\x01{offset_id}true\x02"
    )
    (event,) = trace_events(received_message(Message("traces", record.encode())), "ID1")

    assert (event.success, event.cost_millis, event.tags) == (True, 2, "paid")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", "1\nbrokerRole=SLAVE"),
        ("a", "1\rbrokerRole=SLAVE"),
        ("a", "1\\"),
        ("a", "1\\\\\\"),
        ("a=1\nb", "2"),
        ("a b", "1"),
        ("#a", "1"),
        ("", "1"),
    ],
)
def test_a_setting_that_would_change_another_one_is_rejected(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="settings="):
        write_properties({"first": "x", name: value, "last": "y"})


def test_settings_are_written_as_they_are() -> None:
    settings = {
        "brokerIP1": "10.0.0.1",
        "path": "C:\\\\store\\\\",
        "%RETRY%billing": "5",
        "empty": "",
    }

    assert read_properties(write_properties(settings)) == settings
