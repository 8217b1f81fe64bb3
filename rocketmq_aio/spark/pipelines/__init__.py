"""Pipelines between topics and files: functions, also run by ``rmq pipeline``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines.bodies import BodySchema as BodySchema
    from rocketmq_aio.spark.pipelines.dead_letter import (
        DeadLetterSettings as DeadLetterSettings,
        DeadLetterSummary as DeadLetterSummary,
        TagCount as TagCount,
        dead_letters as dead_letters,
    )
    from rocketmq_aio.spark.pipelines.exporting import (
        ExportSettings as ExportSettings,
        ExportSummary as ExportSummary,
        export as export,
    )
    from rocketmq_aio.spark.pipelines.group_lag import (
        LagSettings as LagSettings,
        LagSummary as LagSummary,
        QueueLag as QueueLag,
        lag as lag,
    )
    from rocketmq_aio.spark.pipelines.ingesting import (
        IngestSettings as IngestSettings,
        IngestSummary as IngestSummary,
        ingest as ingest,
    )
    from rocketmq_aio.spark.pipelines.loading import (
        LoadSettings as LoadSettings,
        LoadSummary as LoadSummary,
        load as load,
    )
    from rocketmq_aio.spark.pipelines.replaying import (
        ReplaySettings as ReplaySettings,
        ReplaySummary as ReplaySummary,
        replay as replay,
    )
    from rocketmq_aio.spark.pipelines.selection import Selection as Selection
    from rocketmq_aio.spark.pipelines.summary import (
        Gap as Gap,
        QueueCount as QueueCount,
        Summary as Summary,
    )
    from rocketmq_aio.spark.pipelines.target import Target as Target

# Loaded on first use: `lag` works without Spark.
MODULES: Final = {
    "bodies": ("BodySchema",),
    "dead_letter": ("DeadLetterSettings", "DeadLetterSummary", "TagCount", "dead_letters"),
    "exporting": ("ExportSettings", "ExportSummary", "export"),
    "group_lag": ("LagSettings", "LagSummary", "QueueLag", "lag"),
    "ingesting": ("IngestSettings", "IngestSummary", "ingest"),
    "loading": ("LoadSettings", "LoadSummary", "load"),
    "selection": ("Selection",),
    "replaying": ("ReplaySettings", "ReplaySummary", "replay"),
    "summary": ("Gap", "QueueCount", "Summary"),
    "target": ("Target",),
}
HOMES: Final = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
