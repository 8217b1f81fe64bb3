"""Orders of three shops: counted per minute with Spark, exactly, although the job is killed twice.

    python -m examples.orders

starts a RocketMQ of its own and runs three parts against it:

- `generator` sends orders, out of order and with event times of their own
- `job` is the Spark job: per minute and shop to Parquet, large orders as alerts back to a topic
- `__main__` kills the job in mid-run, starts it again, and compares in the end
"""
