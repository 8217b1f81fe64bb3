"""Name server and brokers in Python, in memory, for development and tests."""
