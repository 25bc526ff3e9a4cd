"""`tandemfeed admin policy`: check a policy file, and reload, explain or show the policy of a server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from rich.console import Console

from tandemfeed.admin_server.policy.document import check_adapters, load_policy
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.admin_server.tables import titled_table
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2

AddCommand = Callable[[str, str, Any], argparse.ArgumentParser]  # name, summary, where to add it


def add_policy_commands(commands: Any, add_command: AddCommand) -> None:
    """Add `policy` with its commands.

    Args:
        commands: what `add_subparsers` returned.
        add_command: adds a command that calls the server.
    """
    text = "check a policy file; reload, explain or show the server's policy"
    policy = commands.add_parser("policy", allow_abbrev=False, help=text, description=text)
    steps = policy.add_subparsers(dest="step", required=True)
    text = "check a policy file without a server; status 0: it can be used, 2: it cannot"
    check = steps.add_parser("check", allow_abbrev=False, help=text, description=text)
    check.add_argument("file", type=Path, metavar="FILE", help="the policy file (TOML)")
    check.add_argument("--cluster", type=Path, metavar="FILE", help="also check that it fits this cluster file")
    check.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_command("reload", "make the server read its policy file now; a file with an error is refused", steps)
    explain = add_command("explain", "show whether an identity may do something, and which rule decides", steps)
    explain.add_argument("subject", metavar="IDENTITY", help="name of the identity")
    explain.add_argument("topic", metavar="TOPIC", help="a topic; with --action administer or observe, a feed's name")
    explain.add_argument(
        "--action", default="subscribe", choices=[*Action], help="what it would do (default %(default)s)"
    )
    add_command("show", "show the identities and rules of the policy in force", steps)


def check(arguments: argparse.Namespace) -> int:
    """Check a policy file; print what is wrong with it."""
    try:
        feeds = None if arguments.cluster is None else load_cluster(arguments.cluster)
        policy = load_policy(arguments.file, feeds)
        if feeds is not None:
            check_adapters(arguments.cluster, feeds, policy)
    except SettingsError as refused:
        print(f"admin: {refused}", file=sys.stderr)
        return 2
    counts = {"identities": len(policy.identities), "groups": len(policy.groups), "rules": len(policy.rules)}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(json.dumps({"file": str(arguments.file), **counts}) if arguments.json else f"{arguments.file}: {listed}")
    return 0


def request_of(arguments: argparse.Namespace) -> tuple[Message, Callable[[Any], None]]:
    """The request for the server, and the function that prints its reply."""
    match arguments.step:
        case "reload":
            return admin_pb2.ReloadPolicyRequest(), _print_reload
        case "explain":
            request = admin_pb2.ExplainPolicyRequest(
                identity=arguments.subject, topic=arguments.topic, action=arguments.action
            )
            return request, lambda reply: print(_explanation(request, reply))
        case _:
            return admin_pb2.ShowPolicyRequest(), print_policy


def _print_reload(reply: admin_pb2.ReloadPolicyReply) -> None:
    print("the policy is reloaded" if reply.changed else "the policy file has not changed")


def _explanation(request: admin_pb2.ExplainPolicyRequest, reply: admin_pb2.ExplainPolicyReply) -> str:
    what = f"{request.action} {'to topic' if request.action == Action.SUBSCRIBE else 'feed'} {request.topic}"
    if reply.allowed:
        return f"{request.identity} may {what}: {reply.file}, line {reply.rule.line}: {reply.rule.name}"
    if not reply.known_identity:
        return f"{request.identity} may not {what}: {reply.file} has no such identity"
    if reply.is_disabled:
        return f"{request.identity} may not {what}: it is disabled; see `tandemfeed admin identity list`"
    return f"{request.identity} may not {what}: no rule of {reply.file} that is valid now grants it"


def print_policy(reply: admin_pb2.ShowPolicyReply, console: Console | None = None) -> None:
    """Print the policy as two tables that fit 80 columns."""
    console = console or Console()
    console.print(f"{reply.file}, loaded {_time_text(reply.loaded_unix_ns)}", markup=False, highlight=False)
    if reply.refusal:
        console.print(f"the present file is refused: {reply.refusal}", markup=False, highlight=False)
    identities = titled_table("identities", ("identity", "roles", "groups", "subscriptions", "calls/s"))
    for each in reply.identities:
        limits = (
            each.subscription_count_max or "",
            f"{each.calls_per_second_max:g}" if each.calls_per_second_max else "",
        )
        identities.add_row(each.name, ", ".join(each.roles), ", ".join(each.groups), *map(str, limits))
    console.print(identities)
    rules = titled_table("rules", ("line", "to", "actions", "topics or feeds", "valid"))
    for rule in reply.rules:
        rules.add_row(
            str(rule.line), "\n".join(rule.to), "\n".join(rule.actions), "\n".join(rule.patterns), _validity(rule)
        )
    console.print(rules)


def _validity(rule: admin_pb2.PolicyRule) -> str:
    lines = [] if rule.is_valid_now else ["not now"]
    lines += ["from", _time_text(rule.from_unix_ns)] if rule.from_unix_ns else []
    lines += ["until", _time_text(rule.until_unix_ns)] if rule.until_unix_ns else []
    return "\n".join(lines) or "always"


def _time_text(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(unix_ns // 1_000_000_000))
