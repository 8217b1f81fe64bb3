"""Chaos runs: random clients and faults in a deterministic simulation of a cluster."""
