"""Login by certificate: the identity is in the client certificate of the TLS connection (mutual TLS).

TLS has checked the signature of the cluster's authority and that the caller has the key. This checks what TLS does not:
the purpose, the time (a connection may be old), and that the authority's records have the certificate, not revoked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tandemfeed.admin_server.identity.certificate_book import CertificateBook
from tandemfeed.admin_server.identity.ways import NotProven, Proof
from tandemfeed.transport.calls.credentials import identities_in
from tandemfeed.transport.calls.tokens import KEY_SIZE
from tandemfeed.v1 import admin_pb2

NO_NAME = "a certificate without an identity"  # what it counts as in limits and the audit log


class CertificateLogin:
    """The way of callers with a client certificate.

    Args:
        port: the port that requires certificates; None: there is none.
    """

    name = "certificate"

    def __init__(self, certificates: CertificateBook, port: Callable[[], int | None]) -> None:
        self._certificates, self._port = certificates, port

    def claimed(self, request: admin_pb2.LogInWithCertificateRequest, context: grpc.ServicerContext) -> str:
        """The identity in the certificate."""
        require_key(request.public_key, context)
        certificate = peer_certificate(context)
        if certificate is None:
            port = self._port()
            where = f"port {port} does" if port else "start the admin server with --listen-mutual-tls"
            code, text = grpc.StatusCode.FAILED_PRECONDITION, f"this port asks for no certificate; {where}"
            context.abort(code, text)
        return identity_in(certificate) or NO_NAME

    def prove(self, request: admin_pb2.LogInWithCertificateRequest, context: grpc.ServicerContext) -> Proof:
        """Check that the certificate is a client's, and that it is valid now."""
        certificate = peer_certificate(context)
        identity = "" if certificate is None else identity_in(certificate)
        if certificate is None or not identity:
            raise NotProven("the certificate names no identity")
        if not is_for_clients(certificate):
            raise NotProven("the certificate is not for client authentication")
        expires_unix_s = int(certificate.not_valid_after_utc.timestamp())
        if time.time() >= expires_unix_s:
            raise NotProven("the certificate has expired")
        if (why := self._certificates.why_invalid(certificate, identity)) is not None:
            raise NotProven(why)
        return Proof(identity, request.public_key, expires_unix_s * 1_000_000_000)


def require_key(public_key: bytes, context: grpc.ServicerContext) -> None:
    """End the call unless the request has a key to bind the token to."""
    if len(public_key) != KEY_SIZE:
        text = f"public_key has {len(public_key)} bytes; an Ed25519 public key has {KEY_SIZE}"
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)


def peer_certificate(context: grpc.ServicerContext) -> x509.Certificate | None:
    """The certificate of the caller's TLS connection; None if it has none."""
    found: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]  # the stubs are wrong
    for pem in found.get("x509_pem_cert", ()):
        return x509.load_pem_x509_certificate(pem)
    return None


def identity_in(certificate: x509.Certificate) -> str:
    """The identity that a client's certificate names; empty if it does not name exactly one."""
    names = identities_in(certificate)
    return names[0] if len(names) == 1 else ""


def is_for_clients(certificate: x509.Certificate) -> bool:
    """Whether a certificate may authenticate a client."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usages
