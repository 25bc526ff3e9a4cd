"""Why a server cannot be reached, in one sentence: its name, its port, its certificate, or the clocks.

gRPC reports all of these alike, after its deadline. This module takes the steps of a connection one by one, and reports
the one that fails. It is for error messages only, and sends nothing but a TLS handshake.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import grpc

from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.server_names import ADMIN_SERVER

Result = TypeVar("Result")

FIRST_TRY_S = 1.5  # then find out what is wrong; in all it takes less than three seconds
TIMEOUT_S = 1.0
NOT_ANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
# X509_V_ERR_… of OpenSSL's x509_vfy.h
NOT_YET_VALID, EXPIRED, INVALID_PURPOSE, HOSTNAME_MISMATCH = 9, 10, 26, 62


class Unreachable(Exception):
    """None of the servers can be reached; the text says why for each address, and what to do."""


def call_or_explain(
    call: Callable[[float], Result], addresses: tuple[str, ...], ca_pem: bytes, *, timeout_s: float
) -> Result:
    """Make the first call to a server, or to several; give a busy server the whole time, and a wrong address little.

    Args:
        call: makes the call; its argument is the time limit in seconds.
        addresses: HOST:PORT of each server.

    Raises:
        Unreachable: within three seconds, if no connection can be made.
        grpc.RpcError: the call failed, or no server answered it in time.
    """
    first_s = min(timeout_s, FIRST_TRY_S)
    try:
        return call(first_s)
    except grpc.RpcError as error:
        if status_of(error)[0] not in NOT_ANSWERED:
            raise
        reasons = [why_unreachable(address, ca_pem) for address in addresses]
        found = [reason for reason in reasons if reason is not None]
        if len(found) == len(reasons):
            raise Unreachable("; ".join(found)) from error
        if timeout_s <= first_s:
            raise
    return call(timeout_s - first_s)


def failure_text(error: grpc.RpcError, addresses: str, ca_pem: bytes) -> str:
    """What a failed call to an admin server, or to all of several, says to a person.

    Args:
        addresses: HOST:PORT, or HOST:PORT,HOST:PORT.
    """
    code, details = status_of(error)
    if code not in NOT_ANSWERED:
        return f"{code.name}: {details}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or details.startswith("failed to connect"):  # not a server's words
        text = "a connection can be made, but no answer came in time; the server or this host may be overloaded"
    else:
        text = f"{code.name}: {details}"
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
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's default; gRPC accepts what this refuses
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
    except TimeoutError:
        pass  # the connection was accepted: the server is busy or paused
    return None
