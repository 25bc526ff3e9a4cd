"""`tandemfeed admin identity` and `tandemfeed admin cert`: secrets, states and certificates of identities.

Secrets and private keys are made here and never sent: the server gets a verifier or a signing request. They are written
to a new file that only this user can read, before the server is asked, so that none is lost once it is valid.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from rich.console import Console

from tandemfeed.admin_server.command.output.replies import as_dict
from tandemfeed.admin_server.command.output.tables import titled_table
from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.admin_server.command.server_calls import ServerCalls
from tandemfeed.admin_server.identity.verifiers import make_secret, verifier_of
from tandemfeed.runtime.durable import create_file, make_folder
from tandemfeed.transport.calls.credentials import CredentialUnusable, read_text
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import Unreachable
from tandemfeed.v1 import admin_pb2

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
COMMON_NAME_LENGTH_MAX = 64
# The call may have been carried out although its answer did not arrive.
OUTCOME_UNKNOWN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)


def add_commands(adder: CommandAdder) -> None:
    """Add `identity` and `cert` with their commands."""
    _add_identity_commands(adder.group("identity", "add, rotate, disable, enable or list identities"))
    _add_certificate_commands(adder.group("cert", "issue, revoke or list certificates"))


def _add_identity_commands(identity: CommandAdder) -> None:
    add = identity.calling("add", "give an identity of the policy a secret; it can log in immediately", _add)
    rotate = identity.calling("rotate", "replace an identity's secret", _rotate)
    for one in (add, rotate):
        _add_subject(one)
        one.add_argument(
            "--out", type=Path, metavar="FILE", help="write the new secret to this new file (default: print it once)"
        )
        one.add_argument(
            "--from", type=Path, dest="taken_from", metavar="FILE", help="take the secret in this file, make none"
        )
    rotate.add_argument(
        "--overlap",
        default=0,
        type=_duration_ns,
        metavar="TIME",
        help="how long the former secret stays valid, as 90s, 30m, 12h or 7d (default: it ends now)",
    )
    disable = identity.asking(
        "disable",
        "end all rights of an identity within a second: its streams, tokens and keys",
        lambda arguments: admin_pb2.DisableIdentityRequest(name=arguments.subject, reason=arguments.reason),
        lambda asked, _: print(f"{asked.subject} is disabled: {asked.reason}"),
        hurts=lambda asked: f"end all rights of {asked.subject}",
    )
    _add_subject(disable)
    disable.add_argument("--reason", required=True, metavar="TEXT", help="recorded in the audit log")
    _add_subject(
        identity.asking(
            "enable",
            "return its rights to a disabled identity",
            lambda arguments: admin_pb2.EnableIdentityRequest(name=arguments.subject),
            lambda asked, _: print(f"{asked.subject} is enabled"),
        )
    )
    identity.asking(
        "list",
        "show identities, how they can log in, and when they last did",
        lambda _: admin_pb2.ListIdentitiesRequest(),
        lambda _, reply: print_identities(reply),
    )


def _add_certificate_commands(cert: CommandAdder) -> None:
    issue = cert.calling("issue", "make a key and have its certificate signed", _issue)
    _add_subject(issue)
    issue.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder for NAME.key and NAME.crt, created if missing"
    )
    issue.add_argument(
        "--valid-days", default=0, type=int, metavar="N", help="how long it is valid (default 365, at most 825)"
    )
    issue.add_argument(
        "--purpose",
        default="",
        choices=("client", "server"),
        help="to log in, or to serve (default: server for an adapter or a source, else client)",
    )
    revoke = cert.asking(
        "revoke",
        "revoke a certificate, or all of an identity; the identity of a server is disabled as well",
        lambda arguments: admin_pb2.RevokeCertificatesRequest(which=arguments.which, reason=arguments.reason),
        lambda _, reply: _print_revoked(reply),
        hurts=lambda asked: f"revoke {asked.which}, and end what its owner has from it",
    )
    revoke.add_argument("which", metavar="SERIAL|NAME", help="serial number in hexadecimal, or name of an identity")
    revoke.add_argument("--reason", required=True, metavar="TEXT", help="recorded in the audit log")
    cert.asking(
        "list",
        "show the certificates that were issued",
        lambda _: admin_pb2.ListCertificatesRequest(),
        lambda _, reply: print_certificates(reply),
    )


def _add_subject(command: argparse.ArgumentParser) -> None:
    command.add_argument("subject", metavar="NAME", help="name of the identity")


def _duration_ns(text: str) -> int:
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, such as 90s, 30m, 12h or 7d")
    return int(found[1]) * UNITS_S[found[2]] * 1_000_000_000


# ---- secrets ----


def _add(arguments: argparse.Namespace, server: ServerCalls) -> int:
    with _new_secret(arguments) as secret:
        verifier = _verifier(secret)
        server.call(admin_pb2.AddIdentityRequest(name=arguments.subject, verifier=verifier))
    _tell(arguments, secret, "is added")
    return 0


def _rotate(arguments: argparse.Namespace, server: ServerCalls) -> int:
    request = admin_pb2.RotateIdentityRequest(name=arguments.subject, overlap_ns=arguments.overlap)
    with _new_secret(arguments) as secret:
        if arguments.overlap:  # both secrets are checked with the salt that the server sends at the start of a login
            (present,) = server.call(admin_pb2.ListIdentitiesRequest(name=arguments.subject)).identities
            request.verifier.CopyFrom(_verifier(secret, salt=present.salt, iterations=present.iterations))
        else:
            request.verifier.CopyFrom(_verifier(secret))
        server.call(request)
    _tell(arguments, secret, "has a new secret")
    return 0


def _verifier(secret: str, *, salt: bytes = b"", iterations: int = 0) -> admin_pb2.SecretVerifier:
    made = verifier_of(secret, salt=salt, iterations=iterations) if iterations else verifier_of(secret)
    return admin_pb2.SecretVerifier(
        salt=made.salt, stored_key=made.stored_key, server_key=made.server_key, iterations=made.iterations
    )


@contextmanager
def _new_secret(arguments: argparse.Namespace) -> Iterator[str]:
    """The secret to use, in its file; the file is removed if the server refuses."""
    try:
        secret = make_secret() if arguments.taken_from is None else read_text(arguments.taken_from)
    except CredentialUnusable as bad:
        raise SystemExit(f"admin: {bad}") from bad
    if arguments.out is None:
        yield secret
        return
    with _private_file(arguments.out, secret.encode() + b"\n"):
        yield secret


@contextmanager
def _private_file(path: Path, content: bytes) -> Iterator[None]:
    """A new file that only this user can read. It is removed if what follows fails, unless the server may have accepted
    what is in it: then nothing else would have it."""
    try:
        create_file(path, content)
    except OSError as refused:
        raise SystemExit(f"admin: cannot create {path}: {(refused.strerror or '').lower()}") from refused
    try:
        yield
    except BaseException as failed:
        if _is_refused(failed):
            path.unlink(missing_ok=True)
        else:
            text = f"{path} is kept, because the server may have accepted it before the call failed"
            print(f"admin: {text}; see `tandemfeed admin identity list` and `cert list`", file=sys.stderr)
        raise


def _is_refused(failed: BaseException) -> bool:
    """Whether the server cannot have accepted what was sent."""
    if isinstance(failed, grpc.RpcError):
        return failed.code() not in OUTCOME_UNKNOWN
    return isinstance(failed, (AuthenticationRefused, CredentialUnusable, Unreachable, SystemExit))


def _tell(arguments: argparse.Namespace, secret: str, what: str) -> None:
    """Say what was done; show the secret once if it is in no file."""
    shown = secret if arguments.out is None and arguments.taken_from is None else ""
    if arguments.json:
        place = "" if arguments.out is None else str(arguments.out)
        print(json.dumps({"identity": arguments.subject, "secret": shown, "file": place}))
        return
    place = "" if arguments.out is None else f"; its secret is in {arguments.out}"
    print(f"{arguments.subject} {what}{place}")
    if shown:
        print(f"secret, shown only now: {shown}")


def print_identities(reply: admin_pb2.ListIdentitiesReply, console: Console | None = None) -> None:
    """Print the identities as a table that fits 80 columns."""
    table = titled_table("identities", ("identity", "roles", "can log in by", "state", "last login"))
    for each in reply.identities:
        state = "disabled" if each.is_disabled else "enabled" if each.is_in_policy else "not in the policy"
        last = f"{_time_text(each.last_login_unix_ns)} by {each.last_login_way}" if each.last_login_unix_ns else "never"
        ways = ", ".join(each.ways)
        if each.former_secret_until_unix_ns > time.time_ns():
            ways += f"; former secret until {_time_text(each.former_secret_until_unix_ns)}"
        table.add_row(each.name, ", ".join(each.roles), ways, state, last)
    (console or Console()).print(table)


# ---- certificates ----


def _issue(arguments: argparse.Namespace, server: ServerCalls) -> int:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, arguments.subject[:COMMON_NAME_LENGTH_MAX])])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        make_folder(arguments.out)
    except OSError as refused:
        raise SystemExit(f"admin: cannot create {arguments.out}: {(refused.strerror or '').lower()}") from refused
    with _private_file(arguments.out / f"{arguments.subject}.key", key_pem):
        reply = server.call(
            admin_pb2.IssueCertificateRequest(
                name=arguments.subject,
                signing_request=request.public_bytes(serialization.Encoding.PEM),
                valid_days=max(0, arguments.valid_days),
                purpose=arguments.purpose,
            )
        )
        path = arguments.out / f"{arguments.subject}.crt"
        with _private_file(path, reply.certificate):
            pass
    if arguments.json:
        print(json.dumps({"file": str(path), **as_dict(reply.status)}))
        return 0
    status = reply.status
    what = f"server {', '.join(status.server_names)}" if status.server_names else "client"
    until = _time_text(status.not_after_unix_ns)
    print(f"{path}: certificate of {status.identity} as {what}, serial {status.serial}, valid until {until}")
    return 0


def _print_revoked(reply: Any) -> None:
    for each in reply.revoked:
        print(f"revoked {each.serial} of {each.identity} ({each.purpose})")
    for name in reply.disabled_identities:
        print(
            f"{name} is disabled, because callers cannot check whether a server's certificate is revoked; when it has"
        )
        print(f"a new certificate, run `tandemfeed admin identity enable {name}`")


def print_certificates(reply: admin_pb2.ListCertificatesReply, console: Console | None = None) -> None:
    """Print the certificates as a table."""
    table = titled_table("certificates", ("identity", "purpose", "valid until", "state", "serial"))
    now = time.time_ns()
    for each in reply.certificates:
        state = "expired" if each.not_after_unix_ns <= now else "valid"
        if each.revoked_unix_ns:
            state = f"revoked: {each.reason}"
        table.add_row(each.identity, each.purpose, _time_text(each.not_after_unix_ns), state, each.serial)
    (console or Console()).print(table)


def _time_text(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(unix_ns // 1_000_000_000))
