"""Results: samples in files, their medians and paired ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import machine
from benchmarks.sample import Sample

FOLDER: Final = Path(__file__).parent / "results"


class Results(msgspec.Struct, kw_only=True):
    """Samples of one run, with machine and parameters; *kind* is "broker" or "ceiling"."""

    kind: str
    taken_at: str
    machine: dict[str, str | int]
    settings: dict[str, str | int | float]
    samples: list[Sample]

    @classmethod
    def taken_now(
        cls, kind: str, settings: dict[str, str | int | float], samples: list[Sample]
    ) -> Results:
        return cls(
            kind=kind,
            taken_at=time.strftime("%Y-%m-%d %H:%M:%S"),
            machine=machine.describe(),
            settings=settings,
            samples=samples,
        )

    def save(self, folder: Path = FOLDER) -> Path:
        """Write a JSON file named after the kind and the time, and return it."""
        folder.mkdir(parents=True, exist_ok=True)
        stamp = self.taken_at.replace(" ", "-").replace(":", "")
        path = folder / f"{self.kind}-{stamp}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
        return path


def load(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def newest(kind: str, folder: Path = FOLDER) -> Path | None:
    """Return the last saved file of *kind*; None if there is none."""
    return max(folder.glob(f"{kind}-*.json"), default=None)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        held = sorted(values)
        return cls(statistics.median(held), held[0], held[-1]) if held else None


def figures(samples: Iterable[Sample], workload: str, subject: str, name: str) -> dict[int, float]:
    """Return one figure of a subject by round; dirty ones only if no clean one exists."""
    mine = [
        sample
        for sample in samples
        if (sample.workload, sample.subject) == (workload, subject) and name in sample.figures
    ]
    clean = [sample for sample in mine if sample.clean]
    return {sample.round_number: sample.figures[name] for sample in clean or mine}


def paired_ratio(
    samples: list[Sample], workload: str, subject: str, reference: str, name: str
) -> Spread | None:
    """Return the spread of the per-round ratios of *subject* to *reference*."""
    ours = figures(samples, workload, subject, name)
    theirs = figures(samples, workload, reference, name)
    return Spread.of(
        ours[number] / theirs[number] for number in ours if theirs.get(number, 0.0) > 0.0
    )
