"""Soak test: all kinds of clients under load for a long time, while brokers restart."""
