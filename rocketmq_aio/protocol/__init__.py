"""The remoting protocol, sans-I/O: bytes become values, values become bytes.

Nothing here has heard of a socket, a task or a clock.  What the wire means is told, with byte
tables, in ``protocol/README.md`` at the root of the repository.
"""
