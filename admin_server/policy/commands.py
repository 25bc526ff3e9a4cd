"""`tandemfeed admin policy`: check a policy file, and reload, explain or show the policy of a server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from tandemfeed.admin_server.command.output.tables import titled_table
from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.admin_server.policy.document import check_adapters, load_policy
from tandemfeed.admin_server.policy.review import warnings_of
from tandemfeed.admin_server.policy.rules import CLIENT_ACTIONS, Action
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2

SYMBOLS_SHOWN_MAX = 16


def add_commands(adder: CommandAdder) -> None:
    """Add `policy` with its commands."""
    policy = adder.group("policy", "check a policy file; reload, explain or show the server's policy")
    text = "check a policy file without a server; status 0: it can be used, 2: it cannot"
    checking = policy.local("check", text, check)
    checking.add_argument("file", type=Path, metavar="FILE", help="the policy file (TOML)")
    checking.add_argument("--cluster", type=Path, metavar="FILE", help="also check that it fits this cluster file")
    checking.add_argument("--json", action="store_true", help="print the result as one JSON object")
    policy.asking(
        "reload",
        "make the server read its policy file now; a file with an error is refused",
        lambda _: admin_pb2.ReloadPolicyRequest(),
        lambda _, reply: print("the policy is reloaded" if reply.changed else "the policy file has not changed"),
    )
    explain = policy.asking(
        "explain",
        "show whether an identity may do something, and which rule decides",
        _explain_request,
        lambda arguments, reply: print(_explanation(_explain_request(arguments), reply)),
    )
    explain.add_argument("subject", metavar="IDENTITY", help="name of the identity")
    explain.add_argument("topic", metavar="TOPIC", help="a topic; with --action administer or observe, a feed's name")
    explain.add_argument(
        "--action", default="subscribe", choices=[*Action], help="what it would do (default %(default)s)"
    )
    policy.asking(
        "show",
        "show the identities and rules of the policy in force",
        lambda _: admin_pb2.ShowPolicyRequest(),
        lambda _, reply: print_policy(reply),
    )


def check(arguments: argparse.Namespace) -> int:
    """Check a policy file; print what is wrong with it, or what may be."""
    try:
        feeds = None if arguments.cluster is None else load_cluster(arguments.cluster)
        policy = load_policy(arguments.file, feeds)
        if feeds is not None:
            check_adapters(arguments.cluster, feeds, policy)
    except SettingsError as refused:
        print(f"admin: {refused}", file=sys.stderr)
        return 2
    counts = {"identities": len(policy.identities), "groups": len(policy.groups), "rules": len(policy.rules)}
    delays = None if feeds is None else {name: feed.delay_ns for name, feed in feeds.items()}
    warnings = warnings_of(policy, delays, time.time_ns())
    if arguments.json:
        print(json.dumps({"file": str(arguments.file), **counts, "warnings": warnings}))
        return 0
    print(f"{arguments.file}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    for warning in warnings:
        print(f"warning: {warning}")
    return 0


def _explain_request(arguments: argparse.Namespace) -> admin_pb2.ExplainPolicyRequest:
    return admin_pb2.ExplainPolicyRequest(identity=arguments.subject, topic=arguments.topic, action=arguments.action)


def _explanation(request: admin_pb2.ExplainPolicyRequest, reply: admin_pb2.ExplainPolicyReply) -> str:
    what = f"{request.action} {'to topic' if request.action in CLIENT_ACTIONS else 'feed'} {request.topic}"
    if reply.allowed:
        return f"{request.identity} may {what}: {reply.file}, line {reply.rule.line}: {reply.rule.name}"
    if not reply.known_identity:
        return f"{request.identity} may not {what}: {reply.file} has no such identity"
    if reply.is_disabled:
        return f"{request.identity} may not {what}: it is disabled; see `tandemfeed admin identity list`"
    if reply.HasField("too_young_for"):
        rule, delay_s = reply.too_young_for, reply.delay_ns / 1e9
        return (
            f"{request.identity} may not {what}: {reply.file}, line {rule.line}: {rule.name} grants only data that are "
            f"at least {rule.minimum_age_s:g} s old, and the feed of this topic "
            + (f"is delayed by {delay_s:g} s" if delay_s else "is not delayed")
        )
    if reply.symbols:
        some = ", ".join(reply.symbols[:SYMBOLS_SHOWN_MAX]) + (", …" if len(reply.symbols) > SYMBOLS_SHOWN_MAX else "")
        return f"{request.identity} may not {what} as a whole: granted are its symbols {some}"
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
    lines += [f"data {rule.minimum_age_s:g} s old"] if rule.minimum_age_s else []
    lines += ["until", _time_text(rule.until_unix_ns)] if rule.until_unix_ns else []
    return "\n".join(lines) or "always"


def _time_text(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(unix_ns // 1_000_000_000))
