"""Temporary certificates for one test run, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from rocketmq_aio.testing import ServerTLS

DAYS: Final = 2
EXPIRED: Final = -1
EC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Signs certificates; all its files are in *folder*."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl(
            "req", "-x509", *EC, "-subj", f"/CN={name}", "-days", str(DAYS),
            "-addext", "keyUsage=keyCertSign", "-keyout", self._key, "-out", self.certificate,
        )  # fmt: skip

    def sign(self, name: str, *, host: str = "IP:127.0.0.1", days: int = DAYS) -> tuple[Path, Path]:
        """Return a new certificate for *host* and its key."""
        asked, key, certificate = (
            self._folder / f"{name}.{kind}" for kind in ("csr", "key", "pem")
        )
        self._openssl(
            "req", "-new", *EC, "-subj", f"/CN={name}", "-addext", f"subjectAltName={host}",
            "-keyout", key, "-out", asked,
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", asked, "-CA", self.certificate, "-CAkey", self._key,
            "-CAcreateserial", "-days", str(days), "-copy_extensions", "copy", "-out", certificate,
        )  # fmt: skip
        return certificate, key

    def server(self, name: str, *, clients: Authority | None = None, days: int = DAYS) -> ServerTLS:
        """Return server settings; they require client certificates of *clients*."""
        certificate, key = self.sign(name, days=days)
        return ServerTLS(
            certificate=certificate,
            key=key,
            authority=self.certificate,
            client_authority=None if clients is None else clients.certificate,
        )

    @staticmethod
    def _openssl(*arguments: object) -> None:
        command = ["openssl", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
