"""A job that is submitted to a cluster whose interpreters do not have the package.

spark-submit ... shipped_job.py NAMESRV TOPIC
"""

import json
import sys

from pyspark.sql import SparkSession

from rocketmq_aio.spark import register


def place(_: object) -> str:
    import rocketmq_aio  # where this task runs

    return str(rocketmq_aio.__file__)


_, namesrv, topic = sys.argv
spark = SparkSession.builder.getOrCreate()
register(spark)
messages = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe=topic)
bodies = [row.body.decode() for row in messages.schema("body binary").load().collect()]
places = spark.sparkContext.parallelize(range(4), 4).map(place).distinct().collect()
sys.stdout.write("outcome " + json.dumps({"bodies": sorted(bodies), "places": places}) + "\n")
spark.stop()
