"""Consumers, and what they are made of."""
