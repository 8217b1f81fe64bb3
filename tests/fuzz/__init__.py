"""Fuzzing of every decoder: ``python -m tests.fuzz --inputs 1000000 --seed 7``."""
