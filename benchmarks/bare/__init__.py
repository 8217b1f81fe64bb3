"""A bare prototype of the client's design, the yardstick of its ceiling; not a client to use."""
