"""Orders of three shops, counted exactly per minute with Spark, although the job is killed twice.

    python -m examples.orders

This starts a RocketMQ and runs three parts:

- `generator` sends orders, out of order, with event times
- `job` is the Spark job: totals per minute and shop to Parquet, alerts on large orders to a topic
- `__main__` kills the running job, starts it again, and verifies the result
"""
