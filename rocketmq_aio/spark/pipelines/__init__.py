"""Pipelines between topics and files: functions, also run by ``rmq pipeline``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines.bodies import BodySchema as BodySchema
    from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSettings as DeadLetterSettings
    from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSummary as DeadLetterSummary
    from rocketmq_aio.spark.pipelines.dead_letter import TagCount as TagCount
    from rocketmq_aio.spark.pipelines.dead_letter import dead_letters as dead_letters
    from rocketmq_aio.spark.pipelines.exporting import ExportSettings as ExportSettings
    from rocketmq_aio.spark.pipelines.exporting import ExportSummary as ExportSummary
    from rocketmq_aio.spark.pipelines.exporting import export as export
    from rocketmq_aio.spark.pipelines.group_lag import LagSettings as LagSettings
    from rocketmq_aio.spark.pipelines.group_lag import LagSummary as LagSummary
    from rocketmq_aio.spark.pipelines.group_lag import QueueLag as QueueLag
    from rocketmq_aio.spark.pipelines.group_lag import lag as lag
    from rocketmq_aio.spark.pipelines.ingesting import IngestSettings as IngestSettings
    from rocketmq_aio.spark.pipelines.ingesting import IngestSummary as IngestSummary
    from rocketmq_aio.spark.pipelines.ingesting import ingest as ingest
    from rocketmq_aio.spark.pipelines.loading import LoadSettings as LoadSettings
    from rocketmq_aio.spark.pipelines.loading import LoadSummary as LoadSummary
    from rocketmq_aio.spark.pipelines.loading import load as load
    from rocketmq_aio.spark.pipelines.replaying import ReplaySettings as ReplaySettings
    from rocketmq_aio.spark.pipelines.replaying import ReplaySummary as ReplaySummary
    from rocketmq_aio.spark.pipelines.replaying import replay as replay
    from rocketmq_aio.spark.pipelines.selection import Selection as Selection
    from rocketmq_aio.spark.pipelines.summary import Gap as Gap
    from rocketmq_aio.spark.pipelines.summary import QueueCount as QueueCount
    from rocketmq_aio.spark.pipelines.summary import Summary as Summary
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
