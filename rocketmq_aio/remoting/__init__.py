"""Remoting: connections, requests and responses."""
