"""`watch`: the status, redrawn whenever it changes. On a terminal that cannot redraw, the changes as lines."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import TextIO

import grpc
from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tandemfeed.admin_server.alerts import Level, Thresholds, alerts_of, source_state_of, state_of
from tandemfeed.admin_server.command.output.replies import print_json
from tandemfeed.admin_server.command.output.status_page import print_status
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import Unreachable
from tandemfeed.v1 import admin_pb2

INTERVAL_S = 1.0
PAUSED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)  # the server is away, and may come back
Ask = Callable[[], admin_pb2.GetStatusReply]


def watch(ask: Ask, *, is_json: bool, out: TextIO, pause: Callable[[float], object] = time.sleep) -> None:
    """Show the status until interrupted.

    Raises:
        grpc.RpcError: the server refused the request.
    """
    console = Console(file=out)
    first = ask()  # a refusal is reported as by any other command
    try:
        if is_json:
            _print_replies(first, ask, pause)
        elif console.is_terminal and not console.is_dumb_terminal:
            _redraw(first, ask, console, pause)
        else:
            _print_changes(first, ask, console, pause)
    except KeyboardInterrupt:
        return


def _redraw(reply: admin_pb2.GetStatusReply, ask: Ask, console: Console, pause: Callable[[float], object]) -> None:
    lost = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_page(reply, lost, console.width), refresh=True)
            pause(INTERVAL_S)
            reply, lost = _next(reply, ask)


def _page(reply: admin_pb2.GetStatusReply, lost: str, width: int) -> Text:
    page = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    print_status(reply, page)
    return Text.from_ansi((f"{lost}\n" if lost else "") + page.export_text(styles=True))


def _print_changes(
    reply: admin_pb2.GetStatusReply, ask: Ask, console: Console, pause: Callable[[float], object]
) -> None:
    print_status(reply, console)
    facts, lost = facts_of(reply), ""
    while True:
        pause(INTERVAL_S)
        reply, now_lost = _next(reply, ask)
        now_facts = facts_of(reply)
        lines = [f"- {fact}" for fact in facts if fact not in now_facts]
        lines += [f"+ {fact}" for fact in now_facts if fact not in facts]
        lines += [now_lost] if now_lost and not lost else ["the server answers again"] if lost and not now_lost else []
        for line in lines:
            console.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, highlight=False, soft_wrap=True)
        facts, lost = now_facts, now_lost


def _print_replies(reply: admin_pb2.GetStatusReply, ask: Ask, pause: Callable[[float], object]) -> None:
    """One object a line, at every change."""
    shown = ""
    while True:
        if (text := MessageToJson(reply)) != shown:
            print_json(reply)
            shown = text
        pause(INTERVAL_S)
        reply, _ = _next(reply, ask)


def _next(reply: admin_pb2.GetStatusReply, ask: Ask) -> tuple[admin_pb2.GetStatusReply, str]:
    """(the newest status, why it is old)."""
    try:
        return ask(), ""
    except (Unreachable, AuthenticationRefused) as away:
        return reply, f"the server does not answer: {away}"
    except grpc.RpcError as error:
        if status_of(error)[0] not in PAUSED:
            raise
        return reply, "the server does not answer; this is its last status"


def facts_of(reply: admin_pb2.GetStatusReply) -> list[str]:
    """What is worth a line when it changes: states and kinds of alerts, not positions or durations."""
    facts = []
    for feed in reply.feeds:
        name = feed.feed.name
        facts.append(f"{name}: epoch {feed.epoch}, session {feed.feed.session}")
        for row in feed.adapters:
            star = " (active)" if row.adapter.adapter_id == feed.active_adapter_id else ""
            facts.append(f"{name}: {row.adapter.name} is {state_of(row, Thresholds())}{star}")
        facts += [f"{name}: source {each.identity} is {source_state_of(each)}" for each in feed.sources]
        facts.append(f"{name}: {feed.subscriber_count} clients")
        levels = [alert.level for alert in alerts_of(feed, Thresholds())]
        facts.append(f"{name}: {max(levels, default=Level.OK).name}")
    return facts
