"""Why a server cannot be reached, in one sentence: its name, its port, its certificate, or the clocks.

gRPC reports all of these alike, after its deadline. This module takes the steps of a connection one by one, and reports
the one that fails. It is for error messages only, and sends nothing but a TLS handshake.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime

import grpc

from tandemfeed.transport.calls.rpc import status_of
from tandemfeed.transport.calls.server_names import ADMIN_SERVER

TIMEOUT_S = 1.0
# X509_V_ERR_… of OpenSSL's x509_vfy.h
NOT_YET_VALID, EXPIRED, INVALID_PURPOSE, HOSTNAME_MISMATCH = 9, 10, 26, 62


def failure_text(error: grpc.RpcError, addresses: str, ca_pem: bytes) -> str:
    """What a failed call to an admin server, or to all of several, says to a person.

    Args:
        addresses: HOST:PORT, or HOST:PORT,HOST:PORT.
    """
    code, details = status_of(error)
    text = f"{code.name}: {details}"
    if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return text
    each = [address.strip() for address in addresses.split(",")]
    return "; ".join(why_unreachable(address, ca_pem) or f"{address}: {text}" for address in each)


def why_unreachable(address: str, ca_pem: bytes, *, timeout_s: float = TIMEOUT_S) -> str | None:
    """What is wrong with an admin server's address, and what to do; None if a connection can be made.

    Args:
        address: HOST:PORT.
        ca_pem: the certificate authority that must have signed the server's certificate.
        timeout_s: of each step.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except socket.gaierror:
        return f"{address}: the host name {host} cannot be resolved; check the name"
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            return _why_not_trusted(connection, address, ca_pem)
    except ConnectionRefusedError:
        return f"{address}: no server listens there; start it, or check the port"
    except TimeoutError:
        return f"{address}: no answer within {timeout_s:g} s; check the address and the network"
    except OSError as failed:
        return f"{address}: {(failed.strerror or str(failed)).lower()}; check the address and the network"


def _why_not_trusted(connection: socket.socket, address: str, ca_pem: bytes) -> str | None:
    try:
        context = ssl.create_default_context(cadata=ca_pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        return "the CA file has no certificate in PEM format; use the file ca.pem of the admin server"
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_socket(connection, server_hostname=ADMIN_SERVER).close()
    except ssl.SSLCertVerificationError as refused:
        if refused.verify_code in (NOT_YET_VALID, EXPIRED):
            now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            return f"{address}: its certificate is not valid at {now}, which is this host's time; check the clocks"
        if refused.verify_code in (INVALID_PURPOSE, HOSTNAME_MISMATCH):
            return (
                f"{address}: its certificate is not an admin server's ({ADMIN_SERVER}); check the address. If an admin "
                "server of an earlier version listens there, upgrade it: it issues a new certificate when it starts"
            )
        return f"{address}: its certificate is not signed by this CA; use the file ca.pem of that admin server"
    except ssl.SSLError:
        return f"{address}: the server there does not speak TLS; check the port"
    return None
