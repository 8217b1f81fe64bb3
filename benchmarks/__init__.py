"""Benchmarks of rocketmq_aio and the official Java client; see docs/performance.md."""
