"""``python -m rocketmq_aio.cli``."""

from rocketmq_aio.cli import main

main()
