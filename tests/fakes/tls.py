"""TLS contexts for fakes and their clients, from certificates made for these tests alone.

``localhost`` is what a client should trust, ``elsewhere`` names another host, ``expired`` ended in
2020, the key of ``encrypted`` has a passphrase.  Each is its own authority and secures nothing but
loopback connections of tests.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

CERTIFICATES: Final = Path(__file__).parent / "certificates"


def server_context(name: str = "localhost") -> ssl.SSLContext:
    """Return the context of a server with the certificate *name*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem")
    return context


def client_context(*trusted: str) -> ssl.SSLContext:
    """Return the context of a client that trusts only these certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in trusted or ("localhost",):
        context.load_verify_locations(CERTIFICATES / f"{name}.pem")
    return context
