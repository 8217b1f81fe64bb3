"""Connections to brokers and name servers: requests out, answers back, sockets kept alive."""
