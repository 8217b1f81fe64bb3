"""Pipelines between topics and files: functions, also run by ``rmq pipeline``."""

from rocketmq_aio.lazy_names import lazy_names

# Loaded on first use: `lag` works without Spark.  Stub: see `rocketmq_aio`.
_MODULES, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bodies": "BodySchema",
        "dead_letter": "DeadLetterSettings DeadLetterSummary TagCount dead_letters",
        "exporting": "ExportSettings ExportSummary export",
        "group_lag": "LagSettings LagSummary QueueLag lag",
        "ingesting": "IngestSettings IngestSummary ingest",
        "loading": "LoadSettings LoadSummary load",
        "replaying": "ReplaySettings ReplaySummary replay",
        "selection": "Selection",
        "summary": "Gap QueueCount Summary",
        "target": "Target",
    },
)
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]
