"""Measures rocketmq_aio beside the official Java client; see docs/performance.md."""
