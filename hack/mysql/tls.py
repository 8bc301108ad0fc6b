"""Certificates for test servers: an authority of our own, server certificates by name, and a stranger's authority."""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that lives in memory; two of them never trust each other's certificates."""

    _ca: trustme.CA = field(default_factory=lambda: trustme.CA(organization_name="billing-shards development"))

    def write_ca(self, path: Path) -> Path:
        """Write the authority's own certificate (PEM), which a client verifies against."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._ca.cert_pem.bytes())
        return path

    def issue(self, names: Sequence[str], *, certificate: Path, key: Path) -> None:
        """Write a certificate for DNS names and IP addresses, and its private key."""
        issued = self._ca.issue_cert(*names)
        certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(issued.private_key_pem.bytes())


def wrong_ca(path: Path) -> Path:
    """Write the certificate of an authority that has signed nothing here; clients that trust it must refuse us."""
    return Authority().write_ca(path)


def client_context(ca_file: Path) -> ssl.SSLContext:
    """A context that verifies chain and host name against exactly this authority."""
    return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(ca_file))
