"""PushConsumer: validation of arguments and settings."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from rocketmq_aio.config.consumer import ConsumerConfig, LitePullConfig, PushConfig
from rocketmq_aio.config.validation import name_of
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.errors import ClosedError, ConfigError, NotRunningError
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.values import MessageModel

NAMESRV = "127.0.0.1:9"  # nothing is there


async def handle(*_: object) -> None: ...


class AsyncHook:
    """Would never be awaited."""

    async def before(self, context: object) -> None: ...

    def after(self, context: object) -> None: ...


def rejected(**arguments: Any) -> tuple[str, object]:  # noqa: ANN401 - as the constructor takes them
    with pytest.raises(ConfigError) as caught:
        PushConsumer(**{"group": "billing", "on_message": handle, "namesrv": NAMESRV, **arguments})
    return caught.value.setting, caught.value.value


HOOK = AsyncHook()
LITE = LitePullConfig()
CODEC = JSONCodec()


@pytest.mark.parametrize(
    ("arguments", "setting", "value"),
    [
        ({"group": ""}, "group", ""),
        ({"group": "no group!"}, "group", "no group!"),
        ({"group": "DEFAULT_CONSUMER"}, "group", "DEFAULT_CONSUMER"),
        ({"on_message": None}, "on_message", None),
        ({"on_message": "handle"}, "on_message", "handle"),
        ({"on_message": None, "on_batch": 5}, "on_batch", 5),
        ({"on_batch": handle}, "on_message", handle),
        ({"config": {"concurrency": 5}}, "config", {"concurrency": 5}),
        ({"config": LITE}, "config", LITE),
        ({"config": PushConfig(consume_batch_size=2)}, "consume_batch_size", 2),
        ({"orderly": "yes"}, "orderly", "yes"),
        ({"orderly": None}, "orderly", None),
        ({"client": 5, "namesrv": None}, "client", 5),
        ({"client": 5}, "namesrv", NAMESRV),
        ({"namesrv": "nowhere"}, "namesrv", "nowhere"),
        ({"hooks": [CODEC]}, "hooks", CODEC),
        ({"hooks": [HOOK]}, "hooks", HOOK),
        ({"hooks": HOOK}, "hooks", HOOK),
        ({"on_assigned": 5}, "on_assigned", 5),
        ({"on_revoked": "f"}, "on_revoked", "f"),
        ({"on_event": 5}, "on_event", 5),
        ({"on_event": handle}, "on_event", name_of(handle)),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: dict[str, Any], setting: str, value: object
) -> None:
    assert rejected(**arguments) == (setting, value)


def test_handler_with_a_wrong_signature_is_rejected() -> None:
    async def no_parameter() -> None: ...

    with pytest.raises(ConfigError, match=r"no_parameter': it is called with \(message\)"):
        PushConsumer("billing", on_message=no_parameter, namesrv=NAMESRV)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"it is called with \(messages, context\)"):
        PushConsumer("billing", on_batch=lambda messages: None, namesrv=NAMESRV)  # type: ignore[misc,arg-type]


def test_async_on_event_is_rejected() -> None:
    on_event = functools.partial(handle, 1)

    assert rejected(on_event=on_event) == ("on_event", name_of(on_event))


@pytest.mark.parametrize(
    "refusing", [{"orderly": True}, {"message_model": MessageModel.BROADCASTING}], ids=repr
)
def test_client_rebalance_false_requires_concurrent_clustering(refusing: dict[str, Any]) -> None:
    orderly = refusing.pop("orderly", False)
    config = PushConfig(client_rebalance=False, **refusing)

    assert rejected(config=config, orderly=orderly) == ("client_rebalance", False)


@pytest.mark.parametrize("batch_size", [1, 2, 1024])
def test_batch_handler_accepts_any_batch_size(batch_size: int) -> None:
    config = PushConfig(consume_batch_size=batch_size)

    PushConsumer("billing", on_batch=handle, namesrv=NAMESRV, config=config)


COUNTS = {
    "concurrency": 1000,
    "consume_batch_size": 1024,
    "pop_batch_size": 32,
    "pop_threshold_per_queue": 2**53 - 1,
    "pull_batch_size": 2**53 - 1,
    "pull_threshold_per_queue": 2**53 - 1,
    "pull_threshold_bytes_per_queue": 2**53 - 1,
    "pull_threshold_per_topic": 2**53 - 1,
    "pull_threshold_bytes_per_topic": 2**53 - 1,
    "max_span": 2**53 - 1,
}
SECONDS = (
    "consume_timeout_seconds",
    "suspend_seconds",
    "commit_interval_seconds",
    "stuck_seconds",
    "long_poll_seconds",
    "rebalance_interval_seconds",
)
SECONDS_OR_NONE_AT_ALL = ("pull_interval_seconds", "close_timeout_seconds")
WRONG_SECONDS = [-1, math.inf, 10**9, "1", None, True]


def setting_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        PushConfig(**{name: value})  # type: ignore[arg-type]  # that is what is tested
    assert (caught.value.setting, caught.value.value) == (name, value)


def kept(name: str, value: object) -> None:
    config = PushConfig(**{name: value})  # type: ignore[arg-type]  # mypy cannot know the types
    assert getattr(config, name) == value


@pytest.mark.parametrize("name", COUNTS)
def test_counts_have_bounds(name: str) -> None:
    kept(name, 1)
    kept(name, COUNTS[name])
    for wrong in (0, -1, COUNTS[name] + 1, 1.0, "1", True):
        setting_refused(name, wrong)


@pytest.mark.parametrize("name", ["pull_threshold_per_topic", "pull_threshold_bytes_per_topic"])
def test_thresholds_of_a_topic_need_not_be_set(name: str) -> None:
    kept(name, None)


def test_max_reconsume_times_may_be_zero_or_none() -> None:
    kept("max_reconsume_times", 0)
    kept("max_reconsume_times", None)
    for wrong in (-1, 1.5, "16", True):
        setting_refused("max_reconsume_times", wrong)


@pytest.mark.parametrize("name", SECONDS)
def test_times_must_be_positive(name: str) -> None:
    kept(name, 0.001)
    kept(name, 3600)
    for wrong in (0, *WRONG_SECONDS):
        setting_refused(name, wrong)


@pytest.mark.parametrize("name", SECONDS_OR_NONE_AT_ALL)
def test_pauses_may_be_zero(name: str) -> None:
    kept(name, 0)
    kept(name, 3600)
    for wrong in WRONG_SECONDS:
        setting_refused(name, wrong)


def test_popped_messages_are_invisible_for_five_seconds_to_five_minutes() -> None:
    kept("pop_invisible_seconds", 5)
    kept("pop_invisible_seconds", 300)
    for wrong in (4.9, 300.1, "60", None, True):
        setting_refused("pop_invisible_seconds", wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client_rebalance", 1),
        ("undecodable", "drop"),
        ("codec", "json"),
        ("codec", JSONCodec),
        ("offset_illegal", "ignore"),
        ("start_from", "now"),
        ("message_model", "BROADCASTING"),
        ("allocate", "AVG"),
    ],
)
def test_choices_are_checked(name: str, value: object) -> None:
    setting_refused(name, value)


def test_a_setting_that_does_not_exist_is_named_with_one_that_does() -> None:
    with pytest.raises(ConfigError, match="did you mean concurrency"):
        PushConfig(concurency=5)  # type: ignore[call-arg]  # that is what is tested


def test_push_config_has_the_settings_of_all_consumers() -> None:
    config = PushConfig(offset_store=LocalFileOffsetStore(), codec=CODEC)

    assert isinstance(config, ConsumerConfig)
    assert config.concurrency == 20
    assert config.max_reconsume_times is None


def consumer() -> PushConsumer:
    return PushConsumer("billing", on_message=handle, namesrv=NAMESRV)


@pytest.mark.parametrize("topic", ["", "no topic!", "x" * 128, None])
async def test_a_topic_has_a_name(topic: Any) -> None:  # noqa: ANN401 - that is what is tested
    with pytest.raises(ConfigError) as caught:
        await consumer().subscribe(topic)

    assert (caught.value.setting, caught.value.value) == ("topic", topic)


@pytest.mark.parametrize("number", [0, -1, 1001, 1.0, "5", None, True])
async def test_concurrency_is_checked_at_run_time_too(number: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError) as caught:
        consumer().set_concurrency(number)

    assert (caught.value.setting, caught.value.value) == ("concurrency", number)


async def test_before_start_only_local_calls_are_allowed() -> None:
    new = consumer()
    await new.subscribe("orders")
    await new.unsubscribe("orders")

    assert new.assignment() == []
    assert not new.is_suspended()
    assert new.statistics() == {}
    for call in (new.suspend, new.resume, lambda: new.set_concurrency(5)):
        with pytest.raises(NotRunningError):
            call()
    with pytest.raises(NotRunningError):
        await new.ready()
    await new.close()


async def test_after_close_calls_are_rejected() -> None:
    ended = consumer()
    await ended.close()

    for call in (ended.suspend, ended.resume, lambda: ended.set_concurrency(5)):
        with pytest.raises(ClosedError):
            call()
    for requests in (ended.subscribe("orders"), ended.unsubscribe("orders"), ended.run()):
        with pytest.raises(ClosedError):
            await requests
