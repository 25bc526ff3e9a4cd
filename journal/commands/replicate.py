"""`lead`, `follow`, `keygen`: serve a journal to other hosts, and keep a copy of another host's journal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tandemfeed.journal.commands.options import CommandError, add_subcommand, count, read_key, require_journal
from tandemfeed.journal.commands.streams import Interruption, Streams
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.journal.replication import (
    FollowerKeys,
    FollowerStatus,
    LeaderKeys,
    LeaderStatus,
    Mode,
    ReplicationFollower,
    ReplicationLeader,
    new_keys,
)
from tandemfeed.journal.replication.states import FINAL
from tandemfeed.runtime import durable

REPORT_INTERVAL_S = 10.0
POLL_INTERVAL_S = 0.5
EXIT_STOPPED = 1
PUBLIC_MODE = 0o644  # of a public key


def add_to(subcommands: Any) -> None:
    """Add the sub-commands and their options."""
    lead = add_subcommand(
        subcommands,
        "lead",
        "serve a journal to followers",
        "Serve the journal's records to followers on other hosts until stopped. Can run while appenders do. Exit "
        "status 1: it cannot serve any more.",
        [
            "lead DIR --bind tcp://10.0.0.1:7500",
            "lead DIR --bind tcp://10.0.0.1:7500 --secret-key-file lead.key --allow $(cat follow.key.pub)",
        ],
        run_lead,
    )
    lead.add_argument(
        "--bind", required=True, metavar="ENDPOINT", help="tcp://ADDRESS:PORT to serve on; port * selects a free port"
    )
    lead.add_argument(
        "--show-replicated",
        action="store_true",
        help="show tailers of this journal only records that followers acknowledged",
    )
    lead.add_argument(
        "--acks",
        type=count,
        default=1,
        metavar="N",
        help="number of followers that must acknowledge a record (default 1)",
    )
    lead.add_argument(
        "--secret-key-file",
        type=Path,
        metavar="FILE",
        help="file with this leader's secret key; encrypts connections (CURVE)",
    )
    lead.add_argument(
        "--allow", action="append", metavar="KEY", help="public key of a follower that may connect (repeatable)"
    )
    follow = add_subcommand(
        subcommands,
        "follow",
        "keep a copy of another host's journal",
        "Keep the journal in DIR equal to a leader's until stopped; catches up after any interruption. Exit status 1: "
        "it stopped following because it diverged, failed, or was refused by the leader.",
        ["follow COPY --leader tcp://10.0.0.1:7500 --durable"],
        run_follow,
    )
    follow.add_argument("--leader", required=True, metavar="ENDPOINT", help="tcp://HOST:PORT of the leader")
    follow.add_argument("--durable", action="store_true", help="acknowledge only records that are flushed to the disk")
    follow.add_argument(
        "--adopt", action="store_true", help="follow with an existing journal that is a copy of the leader's"
    )
    follow.add_argument(
        "--group",
        metavar="GROUP",
        help="name or id of a group that may read and write the new journal; otherwise only its owner may",
    )
    follow.add_argument(
        "--secret-key-file",
        type=Path,
        metavar="FILE",
        help="file with this follower's secret key (CURVE); FILE.pub has the public key",
    )
    follow.add_argument("--leader-key", metavar="KEY", help="the leader's public key (CURVE)")
    keygen = subcommands.add_parser("keygen", allow_abbrev=False, help="make a key pair for lead and follow")
    keygen.add_argument(
        "file", type=Path, metavar="FILE", help="file for the secret key; the public key goes to FILE.pub"
    )
    keygen.set_defaults(run=run_keygen)


def run_lead(arguments: argparse.Namespace, streams: Streams) -> int:
    """Serve until stopped."""
    require_journal(arguments.folder, is_changed=True)
    keys = None
    if arguments.secret_key_file is not None:
        allowed = frozenset(text.encode() for text in arguments.allow) if arguments.allow else None
        keys = _checked(LeaderKeys, _read(arguments.secret_key_file), allowed)
    elif arguments.allow:
        raise CommandError("--allow needs --secret-key-file; without CURVE the leader cannot identify followers")
    mode = Mode.SHOW_REPLICATED if arguments.show_replicated else Mode.AS_SOON_AS_POSSIBLE
    try:
        leader = ReplicationLeader(
            arguments.folder,
            arguments.bind,
            mode=mode,
            acks=arguments.acks,
            key=read_key(arguments.key_file),
            keys=keys,
        )
    except ValueError as wrong:
        raise CommandError(str(wrong)) from None
    with Interruption() as interruption, leader:
        streams.note(f"serving {arguments.folder} on {leader.endpoint}; end with SIGINT or SIGTERM")
        waited_s = 0.0
        while not interruption.wait(POLL_INTERVAL_S):
            if leader.failure is not None:
                break
            waited_s += POLL_INTERVAL_S
            if waited_s >= REPORT_INTERVAL_S:
                waited_s = 0.0
                streams.note(_leader_text(leader.status))
        streams.note(_leader_text(leader.status))
    return EXIT_STOPPED if leader.failure is not None else 0


def run_follow(arguments: argparse.Namespace, streams: Streams) -> int:
    """Follow until stopped, or until following is impossible."""
    if (arguments.secret_key_file is None) != (arguments.leader_key is None):
        raise CommandError("--secret-key-file and --leader-key must be given together")
    _check_group(arguments.group)
    keys = None
    if arguments.secret_key_file is not None:
        public = _read(arguments.secret_key_file.with_name(arguments.secret_key_file.name + ".pub"))
        keys = _checked(FollowerKeys, arguments.leader_key.encode(), public, _read(arguments.secret_key_file))
    follower = ReplicationFollower(
        arguments.folder,
        arguments.leader,
        key=read_key(arguments.key_file),
        keys=keys,
        durable=arguments.durable,
        adopt=arguments.adopt,
        group=arguments.group,
    )
    with Interruption() as interruption, follower:
        streams.note(f"following {arguments.leader} into {arguments.folder}; end with SIGINT or SIGTERM")
        reported, waited_s = "", REPORT_INTERVAL_S
        while not interruption.wait(POLL_INTERVAL_S):
            status, waited_s = follower.status, waited_s + POLL_INTERVAL_S
            text = _follower_text(status)
            if status.state in FINAL:
                streams.note(text)
                return EXIT_STOPPED
            if text != reported and waited_s >= REPORT_INTERVAL_S:
                reported, waited_s = text, 0.0
                streams.note(text)
        streams.note(_follower_text(follower.status))
    return 0


def _check_group(group: str | None) -> None:
    try:
        Access.of_group(group)
    except ValueError as unknown:
        raise CommandError(f"--{unknown}") from None


def run_keygen(arguments: argparse.Namespace, streams: Streams) -> int:
    """Make a key pair, on the disk before the public key is printed; only the owner can read the secret key."""
    public, secret = new_keys()
    try:
        durable.create_file(arguments.file, secret + b"\n")
    except FileExistsError:
        raise CommandError(f"{arguments.file} exists; give another name, or move it away") from None
    durable.replace_file(arguments.file.with_name(arguments.file.name + ".pub"), public + b"\n", PUBLIC_MODE)
    streams.say(public.decode())
    return 0


def _leader_text(status: LeaderStatus) -> str:
    text = f"{len(status.followers)} followers; replicated up to {format_index(status.replicated_index)}"
    return text + (f"; failed: {status.failure}" if status.failure else "")


def _follower_text(status: FollowerStatus) -> str:
    behind = max(status.leader_next_index - status.next_index, 0)
    text = f"{status.state.name.lower().replace('_', ' ')}: next is {format_index(max(status.next_index, 0))}"
    return text + (f", {behind:,} behind" if behind else "") + (f"; {status.reason}" if status.reason else "")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as refused:
        raise CommandError(f"{path}: {refused.strerror}; make keys with tandemfeed journal keygen FILE") from None


def _checked(make: Any, *parts: Any) -> Any:
    try:
        return make(*parts)
    except ValueError as wrong:
        raise CommandError(f"{wrong}; make keys with tandemfeed journal keygen FILE") from None
