"""Pull responses of real brokers: compressed, batched, IPv6 and version 2 records."""

from typing import Final

import pytest

from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import BORN_IPV6, INNER_BATCH, NEED_UNWRAP
from rocketmq_aio.protocol.record import MAGIC_V2, decode_messages
from tests.unit.protocol.wire_files import Json, command_in, load

pytestmark = pytest.mark.usefixtures("each_core")

PULLS: Final[list[Json]] = load("frames/pulled.json")["pulls"]


def each(pulls: list[Json]) -> pytest.MarkDecorator:
    ids = [f"{pull['version']}: {pull['what']}" for pull in pulls]
    return pytest.mark.parametrize("pull", pulls, ids=ids)


def body_of(pull: Json) -> bytes:
    return command_in(bytes.fromhex(pull["hex"])).body


@each(PULLS)
def test_messages_are_read_as_they_were_sent(pull: Json) -> None:
    queue = MessageQueue(pull["topic"], "broker-a", 0)

    messages, fault = decode_messages(body_of(pull), queue)

    assert fault is None
    assert [message.queue_offset for message in messages] == pull["offsets"]
    assert [message.message_id for message in messages] == pull["message_ids"]
    assert [message.body.decode() for message in messages] == pull["bodies"]
    assert {message.topic for message in messages} == {pull["topic"]}


@each([pull for pull in PULLS if "entries inside" in pull["what"]])
def test_the_entries_of_an_inner_batch_share_its_fields(pull: Json) -> None:
    queue = MessageQueue(pull["topic"], "broker-a", 0)

    messages, _ = decode_messages(body_of(pull), queue)

    assert [message.flag for message in messages] == [0, 1, 2]
    assert len({message.commit_log_offset for message in messages}) == 1
    assert len({message.store_time for message in messages}) == 1
    assert {message.sys_flag & (INNER_BATCH | NEED_UNWRAP) for message in messages} == {192}


@each([pull for pull in PULLS if "middle" in pull["what"]])
def test_a_pull_into_an_inner_batch_returns_the_whole_batch(pull: Json) -> None:
    queue = MessageQueue(pull["topic"], "broker-a", 0)

    messages, _ = decode_messages(body_of(pull), queue)

    assert messages[0].queue_offset < pull["pulled_from"]


@each([pull for pull in PULLS if "IPv6" in pull["what"]])
def test_the_address_of_an_ipv6_client_is_shown(pull: Json) -> None:
    queue = MessageQueue(pull["topic"], "broker-a", 0)

    (message,), _ = decode_messages(body_of(pull), queue)

    assert message.sys_flag & BORN_IPV6
    assert message.born_host.startswith("[::1]:")
    assert message.store_host == "127.0.0.1:29911"


@each([pull for pull in PULLS if "version 2" in pull["what"]])
def test_a_long_topic_comes_in_a_record_of_version_2(pull: Json) -> None:
    body = body_of(pull)

    assert int.from_bytes(body[4:8], "big", signed=True) == MAGIC_V2
    assert len(pull["topic"]) > 127


def test_every_unusual_form_was_pulled() -> None:
    reported = " ".join(pull["what"] for pull in PULLS)

    for form in ("compressed", "three messages", "entries inside", "middle", "IPv6", "version 2"):
        assert form in reported
