"""The public names; made by `tools/make_stub.py`."""

# ruff: noqa: I001
# fmt: off
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
