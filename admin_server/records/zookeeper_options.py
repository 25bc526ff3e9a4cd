"""The options of `tandemfeed admin-server` for records in ZooKeeper."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandemfeed.admin_server.records.zookeeper import DEFAULT_ROOT, SESSION_MS, ZooKeeperSettings
from tandemfeed.transport.settings_file import SettingsError


def add_zookeeper_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options. Without --zookeeper, the records are in the state folder, and this server is the only one."""
    group = parser.add_argument_group("several admin servers, one active")
    group.add_argument("--zookeeper", metavar="HOST:PORT,…", help="ZooKeeper servers that keep the records")
    group.add_argument(
        "--zookeeper-root",
        default=DEFAULT_ROOT,
        metavar="PATH",
        help="ZooKeeper node that contains the records (default %(default)s)",
    )
    group.add_argument(
        "--zookeeper-auth-file",
        type=Path,
        metavar="FILE",
        help="file with USER:PASSWORD; without it, any client of ZooKeeper can change the records",
    )
    group.add_argument(
        "--zookeeper-session-ms",
        type=int,
        default=SESSION_MS,
        metavar="N",
        help="replace a server that is silent for N ms (default %(default)s)",
    )


def zookeeper_from(arguments: argparse.Namespace) -> ZooKeeperSettings | None:
    """The settings from the options; None without --zookeeper.

    Raises:
        SettingsError: with option and reason.
    """
    if not arguments.zookeeper:
        return None
    path = arguments.zookeeper_auth_file
    credential = "" if path is None else _credential_in(path)
    return ZooKeeperSettings(
        arguments.zookeeper, arguments.zookeeper_root, credential, session_ms=arguments.zookeeper_session_ms
    )


def _credential_in(path: Path) -> str:
    try:
        credential = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as bad:
        raise SettingsError(f"--zookeeper-auth-file {path} cannot be read: {bad}") from bad
    user, colon, password = credential.partition(":")
    if not (user and colon and password) or "\n" in credential:
        raise SettingsError(f"--zookeeper-auth-file {path} must contain one line, USER:PASSWORD")
    return credential
