"""The names of the cluster's servers: in their certificates, and as the audience of what their callers send.

A server's certificate names what it serves, not where. Callers have TLS check that name at whatever address they find
the server; so no other certificate of the same authority passes for it. The authority must never put such a name into
the certificate of anything else, and every name must belong to one server only, whatever its case.
"""

from __future__ import annotations

import hashlib
import re

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

DOMAIN = "tandemfeed.internal"  # .internal is reserved for private use, so that no public authority certifies it
ADMIN_SERVER = f"admin-server.{DOMAIN}"
_PLAIN_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_HASHED = "x--"  # begins the label of a name that is not a DNS label


class WrongCertificate(OSError):
    """The certificate that a server was given is not for what it serves; the text says what to do."""


def adapter_server(feed: str, adapter: str) -> str:
    """The name of a feed's adapter."""
    return f"{_label(adapter)}.adapter.{_label(feed)}.{DOMAIN}"


def source_gateway(feed: str) -> str:
    """The name of the server that fills gaps in a feed's source streams."""
    return f"source.{_label(feed)}.{DOMAIN}"


def check_certificate(certificate_pem: bytes, server_name: str) -> None:
    """Check that callers will accept a certificate as this server's.

    Raises:
        WrongCertificate: it is for something else, or was issued before certificates named servers.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        names, may_serve = purpose_of(certificate)
    except ValueError as bad:
        raise WrongCertificate(f"the TLS certificate cannot be read: {bad}; expected one in PEM format") from bad
    if server_name not in names or not may_serve:
        found = ", ".join(sorted(names)) or "no server"
        raise WrongCertificate(
            f"the TLS certificate must name {server_name}, for server authentication; it names {found}"
            f"{'' if may_serve else ', and is not for servers'}. Check the options. The admin server issues "
            "certificates for the servers in its cluster file when it starts: if this one is old, restart the admin "
            "server, and use the new files in the folder certs of its state"
        )


def purpose_of(certificate: x509.Certificate) -> tuple[frozenset[str], bool]:
    """(the server names in a certificate, whether it may authenticate a server)."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = frozenset(alternatives.get_values_for_type(x509.DNSName))
    except x509.ExtensionNotFound:
        names = frozenset()
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return names, True
    return names, ExtendedKeyUsageOID.SERVER_AUTH in usages


def _label(name: str) -> str:
    """The DNS label of a feed's or an adapter's name, which may be longer than a label, and differ in case only."""
    if _PLAIN_LABEL.match(name) and not name.startswith(_HASHED):
        return name
    return _HASHED + hashlib.sha256(name.encode()).hexdigest()[:40]
