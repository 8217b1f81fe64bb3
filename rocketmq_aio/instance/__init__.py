"""The client instance: routes, heartbeats, broker calls, requests of brokers."""
