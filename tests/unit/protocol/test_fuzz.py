"""100 000 changed inputs of all decoders: each is read, or refused with a documented error.

``python -m tests.fuzz`` tries any number, and other seeds.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.fuzz.runner import MEMORY_EVERY, Fuzzer, FuzzError
from tests.fuzz.target import Target, any_bytes
from tests.fuzz.targets import TARGETS, shares
from tests.fuzz.wire import check_body

INPUTS: Final = 100_000
SHARES: Final = shares(TARGETS, INPUTS)
SEED: Final = 1


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_changed_inputs_are_read_or_refused_with_documented_errors(target: Target) -> None:
    fuzzer = Fuzzer(target, SEED)
    fuzzer.run(SHARES[target.name])

    assert fuzzer.count >= SHARES[target.name]
    assert len(fuzzer.known) > 2  # inputs of several outcomes, not only refused ones


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1.5"])
def test_a_body_with_numbers_as_text_passes_its_check(number: str) -> None:
    check_body(b'ConsumeStats\n{"offsetTable":{},"consumeTps":"%s"}' % number.encode())


def broken(data: bytes) -> str:
    if data.startswith(b"good"):
        return "read"
    raise KeyError(data)


def greedy(data: bytes) -> int:
    return len(bytes(8 * 1024 * 1024))


@pytest.mark.parametrize(("check", "cause"), [(broken, "KeyError"), (greedy, "bytes of memory")])
def test_a_fuzzer_reports_undocumented_errors_and_memory(check: object, cause: str) -> None:
    target = Target(name="t", seeds=lambda _: [b"good"], mutate=any_bytes, check=check)  # type: ignore[arg-type]

    with pytest.raises(FuzzError, match=cause):
        Fuzzer(target, SEED).run(MEMORY_EVERY)
