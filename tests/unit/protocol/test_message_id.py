"""Message ids: unique, and decodable by tools."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.protocol.message_id import MessageIdGenerator

HOST = bytes([192, 168, 1, 20])
NOON = int(datetime(2024, 5, 17, 12).timestamp() * 1000)


@pytest.fixture(params=["UTC", "Asia/Shanghai", "America/New_York"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in each of these zones; two of them change their clocks."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ids(count: int, now_ms: int = NOON, host: bytes = HOST) -> list[str]:
    generator = MessageIdGenerator(host, 0x1234, 0xDEADBEEF)
    return [generator.next_id(now_ms) for _ in range(count)]


def millis_of(message_id: str) -> int:
    """Return the time in an id: milliseconds since the month began."""
    return int(message_id[-12:-4], 16)


def test_an_id_holds_host_process_salt_time_and_counter() -> None:
    (first,) = ids(1)
    month = int(datetime(2024, 5, 1).timestamp() * 1000)

    assert first[:20] == "C0A80114" + "1234" + "DEADBEEF"
    assert millis_of(first) == NOON - month
    assert first[-4:] == "0000"


@pytest.mark.parametrize(("host", "length"), [(HOST, 32), (bytes(16), 56)], ids=["ipv4", "ipv6"])
def test_an_id_is_upper_case_hex_of_the_right_length(host: bytes, length: int) -> None:
    (message_id,) = ids(1, host=host)

    assert len(message_id) == length
    assert message_id == message_id.upper()
    assert bytes.fromhex(message_id)[: len(host)] == host


def test_ids_of_one_millisecond_differ() -> None:
    made = ids(2 * 65_536 + 1)

    assert len(set(made)) == len(made)
    assert [each[-4:] for each in made[:3]] == ["0000", "0001", "0002"]


def test_ids_that_are_counted_together_differ_from_earlier_ones() -> None:
    generator = MessageIdGenerator(HOST, 1, 1)
    earlier = {generator.next_id(NOON) for _ in range(65_530)}
    stamp, number = generator.counter(NOON, 10)
    generator.skip(10)
    together = {f"{stamp}{number + place:04X}" for place in range(1, 11)}

    assert len(earlier | together | {generator.next_id(NOON)}) == 65_541


def test_the_counter_continues_across_milliseconds() -> None:
    generator = MessageIdGenerator(HOST, 1, 1)
    made = [generator.next_id(NOON + step) for step in range(3)]

    assert [each[-4:] for each in made] == ["0000", "0001", "0002"]
    assert [millis_of(each) - millis_of(made[0]) for each in made] == [0, 1, 2]


def test_ids_are_unique_when_the_clock_goes_back() -> None:
    generator = MessageIdGenerator(HOST, 1, 1)
    made = [generator.next_id(NOON + step) for step in (0, 1, -5, 1, 0, -40 * 86_400_000, 0)]

    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "again",
    [datetime(2024, 5, 1, 12), datetime(2024, 6, 1, 12)],
    ids=["the clock goes back", "a month later"],
)
def test_ids_are_unique_when_time_and_counter_repeat(again: datetime) -> None:
    noon = int(datetime(2024, 5, 1, 12).timestamp() * 1000)
    generator = MessageIdGenerator(HOST, 1, 1)
    first = generator.next_id(noon)
    generator.next_id(noon + 1)
    generator.skip(2**16 - 2)

    assert generator.next_id(int(again.timestamp() * 1000)) != first


@pytest.mark.parametrize("now_ms", [0, 1, 999])
def test_ids_are_complete_with_an_unset_clock(now_ms: int) -> None:
    assert [len(each) for each in ids(2, now_ms)] == [32, 32]


def test_process_id_and_salt_are_truncated() -> None:
    generator = MessageIdGenerator(HOST, 0x7_0001, 0x7_0000_0002)

    assert generator.next_id(NOON)[8:20] == "0001" + "00000002"


@pytest.mark.usefixtures("time_zone")
@pytest.mark.parametrize(
    ("year", "month"), [(2024, 2), (2023, 2), (2024, 12), (2024, 3), (2024, 11), (2025, 1)]
)
def test_the_time_starts_again_with_every_month(year: int, month: int) -> None:
    start = int(datetime(year, month, 1).timestamp() * 1000)
    generator = MessageIdGenerator(HOST, 1, 1)
    before, first, later = (generator.next_id(start + step) for step in (-1, 0, 5))

    assert millis_of(before) > 27 * 86_400_000
    assert (millis_of(first), millis_of(later)) == (0, 5)


@given(st.integers(0, 4_102_444_800_000))
def test_the_time_in_an_id_is_below_a_month(now_ms: int) -> None:
    (message_id,) = ids(1, now_ms)

    assert 0 <= millis_of(message_id) < 31 * 86_400_000 + 3_600_000
