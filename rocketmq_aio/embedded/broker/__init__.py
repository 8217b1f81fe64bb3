"""Embedded broker: a processor per kind of request."""
