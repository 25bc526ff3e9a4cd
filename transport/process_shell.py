"""What all processes of the cluster share: structured logs, a clean stop, the ready line, metrics, options.

Never on a hot path.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from tandemfeed.runtime.signals import StopSignal as StopSignal  # every process has one
from tandemfeed.transport.calls.admin_servers import check_addresses
from tandemfeed.transport.calls.credentials import (
    CertificateFiles,
    Credential,
    CredentialUnusable,
    SecretFile,
    TokenFile,
)
from tandemfeed.transport.multicast.groups import BadGroup, check_interface
from tandemfeed.transport.multicast.sockets import LOOPBACK, Datagrams, Multicast
from tandemfeed.transport.profiles import add_profile_argument, complete

WAYS = ("secret_file", "certificate_file", "token_file")  # of logging in
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, component, event, and the fields of `extra`."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "component": self._component,
            "event": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logging(component: str, level: str = "info") -> None:
    """Send this process's logs to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def announce(event: str, **fields: object) -> None:
    """Print one JSON line on stdout, for the parent process."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def announce_ready(**fields: object) -> None:
    """Print the line that says that this process serves: {"event": "ready", …addresses…}."""
    announce("ready", **fields)


@dataclass(frozen=True, slots=True)
class Connection:
    """How a process reaches the admin server, and how it multicasts.

    Attributes:
        admin: host:port; host:port,host:port if there are several, one of which is active.
        identity: "" with a token, whose issuer's settings say whose it is.
        credential: what this process logs in with.
    """

    admin: str
    ca_pem: bytes
    identity: str
    credential: Credential = field(repr=False)
    multicast: Multicast = field(default_factory=Multicast)


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every process of the cluster that talks to the admin server."""
    group = _add_login_arguments(parser)
    group.add_argument(
        "--interface", type=_interface, metavar="IP", help=f"IP of the multicast interface (default: {LOOPBACK})"
    )
    group.add_argument(
        "--datagrams",
        type=_datagrams,
        metavar="{zeromq,udp}",
        help="whose sockets multicast: ZeroMQ's, or the kernel's own, which are faster and queue less; processes may "
        "differ (default: zeromq)",
    )
    add_process_arguments(parser)


def add_login_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that only calls the admin server."""
    _add_login_arguments(parser)


def _add_login_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """None is required or has a default: what is not given, `connection_from` takes from elsewhere."""
    group = parser.add_argument_group("connection", "what is not given comes from the environment or a profile")
    group.add_argument(
        "--admin",
        type=_addresses,
        metavar="HOST:PORT,…",
        help="the stream administration server, or all of them; the process finds the active one",
    )
    group.add_argument("--ca", type=Path, metavar="FILE", help="certificate of the CA to trust (PEM)")
    group.add_argument("--identity", metavar="NAME", help="identity of this process; needed with --secret-file only")
    group.add_argument("--secret-file", type=Path, metavar="FILE", help="log in with the identity's secret")
    group.add_argument("--certificate-file", type=Path, metavar="FILE", help="log in with a client's certificate (PEM)")
    group.add_argument("--key-file", type=Path, metavar="FILE", help="private key of --certificate-file (PEM)")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="log in with a token of an outside issuer (JWT)")
    add_profile_argument(group)
    parser.set_defaults(connection_options=group._group_actions)
    return group


def _addresses(text: str) -> str:
    """Check one address or several."""
    try:
        check_addresses(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    return text


def _interface(text: str) -> str:
    """Check that this host has the interface."""
    try:
        check_interface(text)
    except BadGroup as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    return text


def _datagrams(text: str) -> str:
    """Check the name of a kind of sockets."""
    if text not in get_args(Datagrams):
        raise argparse.ArgumentTypeError(f"{text!r} is neither zeromq nor udp")
    return text


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every process."""
    group = parser.add_argument_group("process")
    levels = ("debug", "info", "warning", "error")
    group.add_argument("--log-level", default="info", choices=levels, help="lowest level to log (default: %(default)s)")
    group.add_argument("--metrics-port", type=int, default=0, metavar="N", help="Prometheus port (default: 0, off)")


def add_reflection_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of every process that serves calls."""
    text = "let tools list this server's services (gRPC server reflection), with an administrator's token"
    parser.add_argument("--reflection", action="store_true", help=text)


def connection_from(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Connection:
    """Complete the options, and read the files that they name. If one cannot be used, end the process with a clear
    message, which says where the value comes from."""
    options = [option for option in arguments.connection_options if option.dest != "profile"]
    if any(getattr(arguments, way) is not None for way in WAYS):  # the profile's way does not count then
        options = [option for option in options if option.dest not in (*WAYS, "key_file")]
    origins = complete(parser, arguments, options, needed={"admin", "ca"})
    try:
        ca_pem = arguments.ca.read_bytes()
    except OSError as missing:
        parser.error(
            f"cannot read {arguments.ca} (from {origins['ca']}): {missing.strerror}; --ca needs the file ca.pem of the "
            "admin server's state folder"
        )
    credential = _credential_from(parser, arguments)
    identity = arguments.identity or ""
    try:
        credential.read()
        if isinstance(credential, CertificateFiles):
            if identity not in ("", credential.identity()):
                parser.error(f"--identity is {identity}, but --certificate-file is that of {credential.identity()}")
            identity = credential.identity()
    except CredentialUnusable as bad:
        parser.error(str(bad))
    interface = getattr(arguments, "interface", None) or LOOPBACK
    datagrams: Datagrams = getattr(arguments, "datagrams", None) or "zeromq"
    return Connection(arguments.admin, ca_pem, identity, credential, Multicast(interface, datagrams))


def _credential_from(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> SecretFile | CertificateFiles | TokenFile:
    """The one way of logging in that the options give."""
    given = [getattr(arguments, way) for way in WAYS]
    if sum(each is not None for each in given) != 1:
        parser.error("give one of --secret-file, --certificate-file and --token-file: what this process logs in with")
    if (arguments.certificate_file is None) != (arguments.key_file is None):
        parser.error("--certificate-file and --key-file need each other")
    if arguments.secret_file is not None:
        if not arguments.identity:
            parser.error("--secret-file needs --identity: whose secret it is")
        return SecretFile(arguments.secret_file)
    if arguments.token_file is not None:
        return TokenFile(arguments.token_file)
    return CertificateFiles(arguments.certificate_file, arguments.key_file)


@contextmanager
def alone_with(path: Path, otherwise: str) -> Iterator[None]:
    """Lock a file, so that no second process works with it. The lock ends with this process, however that ends.

    Args:
        path: created if it does not exist, for this user only.
        otherwise: the text of the error if another process has the lock.

    Raises:
        OSError: another process has the lock, or the file cannot be written.
    """
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(otherwise) from None
        yield
