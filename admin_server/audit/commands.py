"""`tandemfeed admin audit`: read a server's audit log, and check it, with or without a server."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tandemfeed.admin_server.audit.chain import NO_DIGEST, OWN_FIELDS, Head
from tandemfeed.admin_server.audit.files import audit_files
from tandemfeed.admin_server.audit.verification import Verification, noted_head, verify
from tandemfeed.admin_server.command.output.replies import print_json
from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.admin_server.command.server_calls import ServerCalls
from tandemfeed.v1 import admin_pb2

FOLLOW_INTERVAL_S = 1.0
AGO = re.compile(r"(\d+)([smhd])")
UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def add_commands(adder: CommandAdder) -> None:
    """Add `audit` with its commands."""
    audit = adder.group("audit", "read or check the audit log")
    show = audit.calling("show", "show the newest entries of the server's audit log", run_show)
    when = "a time such as 2026-11-22T07:40:00Z, or how long ago, such as 15m, 2h or 3d"
    show.add_argument("--since", type=unix_ns_of, default=0, metavar="TIME", help=f"only entries since then: {when}")
    show.add_argument("--until", type=unix_ns_of, default=0, metavar="TIME", help="only entries before then")
    show.add_argument("--event", default="", metavar="NAME", help="only this event, such as 'subscription refused'")
    show.add_argument(
        "--who", default="", metavar="NAME", help="only entries about what this identity did or was refused"
    )
    show.add_argument("--feed", default="", metavar="NAME", help="only entries of this feed")
    show.add_argument("--limit", type=int, default=100, metavar="N", help="how many entries (default: %(default)s)")
    show.add_argument("--follow", action="store_true", help="then show each new entry, until interrupted")
    text = "check the hash chain of a state folder's audit log, without a server; status 0: it is whole, 1: it is not"
    check = audit.local("verify", text, run_verify)
    check.add_argument(
        "--state", type=Path, required=True, metavar="DIR", help="the admin server's state folder, or a copy"
    )
    check.add_argument(
        "--head", type=_head_of, metavar="NUMBER:DIGEST", help="an entry that the log must have, as noted elsewhere"
    )
    check.add_argument("--json", action="store_true", help="print the result as one JSON object")
    audit.calling(
        "verify-server", "make the server check its audit log; status 0: it is whole, 1: it is not", run_remote
    )


def run_show(arguments: argparse.Namespace, server: ServerCalls) -> int:
    """Print entries as they are, or for people."""
    request = admin_pb2.ReadAuditRequest(
        since_unix_ns=arguments.since,
        until_unix_ns=arguments.until,
        event=arguments.event,
        identity=arguments.who,
        feed=arguments.feed,
        limit=arguments.limit,
    )
    while True:
        reply = server.call(request)
        for entry in reply.entries:
            print(entry.line if arguments.json else _text_of(json.loads(entry.line)), flush=True)
            request.after_number = entry.number
        if not arguments.follow:
            return 0
        try:
            time.sleep(FOLLOW_INTERVAL_S)
        except KeyboardInterrupt:
            return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Check a folder's log."""
    folder: Path = arguments.state
    try:
        head = noted_head(folder)  # before the log: a server that runs writes the log first
        if not audit_files(folder):
            print(f"admin: {folder} has no audit log; --state must be an admin server's state folder", file=sys.stderr)
            return 2
        return _print(verify(folder, head, arguments.head), is_json=arguments.json)
    except OSError as failed:
        print(f"admin: the audit log cannot be read: {failed}", file=sys.stderr)
        return 2


def run_remote(arguments: argparse.Namespace, server: ServerCalls) -> int:
    """Have the server check its log."""
    reply = server.call(admin_pb2.VerifyAuditRequest())
    if arguments.json:
        print_json(reply)
        return 1 if reply.problems else 0
    head = Head(reply.head_number, reply.head_digest)
    found = Verification(reply.entry_count, reply.first_number, head, list(reply.problems), list(reply.notes))
    return _print(found, is_json=False)


def unix_ns_of(text: str) -> int:
    """The time in an option."""
    if ago := AGO.fullmatch(text):
        return time.time_ns() - int(ago[1]) * UNIT_S[ago[2]] * 1_000_000_000
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a time such as 2026-11-22T07:40:00Z nor 15m, 2h or 3d"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1_000_000_000


def _head_of(text: str) -> Head:
    number, _, digest = text.partition(":")
    if not number.isdecimal() or len(digest) != len(NO_DIGEST):
        raise argparse.ArgumentTypeError(f"{text!r} is not NUMBER:DIGEST, as `audit verify` prints it")
    return Head(int(number), digest)


def _print(found: Verification, *, is_json: bool) -> int:
    head = f"{found.head.number}:{found.head.digest}"
    if is_json:
        counts: dict[str, Any] = {"entry_count": found.entry_count, "first_number": found.first_number}
        print(json.dumps({**counts, "head": head, "problems": found.problems, "notes": found.notes}))
    else:
        for line in (*found.notes, *found.problems):
            print(line)
        verdict = "is damaged" if found.problems else "is whole"
        print(f"the chain of {found.entry_count} entries, from {found.first_number}, {verdict}; head {head}")
    return 1 if found.problems else 0


def _text_of(entry: dict[str, Any]) -> str:
    at_s, rest_ns = divmod(entry["unix_ns"], 1_000_000_000)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_s)) + f".{rest_ns // 1_000_000:03d}Z"
    fields = " ".join(f"{name}={_value(value)}" for name, value in entry.items() if name not in OWN_FIELDS)
    return f"{entry['number']:>6} {at} {entry['event']}: {fields}"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if not text or " " in text else text
