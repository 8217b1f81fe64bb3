"""The Spark connector beside bare sources and sinks, paired in one session."""
