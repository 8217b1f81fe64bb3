"""The remoting protocol, sans-I/O: decodes bytes to values and encodes values to bytes.

No module here uses sockets, tasks or clocks.  ``protocol/README.md`` at the root of the repository
documents the wire format with byte tables.
"""
