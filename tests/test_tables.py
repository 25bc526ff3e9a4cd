"""Every table that a command prints fits a terminal of 80 columns, and breaks no value, also if the values are wide."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tandemfeed.admin_server.command.output.status_page import print_feeds, print_status
from tandemfeed.admin_server.policy.commands import print_policy
from tandemfeed.benchmarks.cli import main as bench
from tandemfeed.client_lib.commands.live_view import render
from tandemfeed.deploy.command import main as command
from tandemfeed.deploy.demo.report import print_report
from tandemfeed.deploy.drills.ledger import RoundFigures
from tandemfeed.deploy.drills.ledger_report import print_ledger, print_rounds
from tandemfeed.deploy.drills.rounds import DrillResult
from tandemfeed.deploy.hiccups.record import Hiccups
from tandemfeed.journal import Journal, NamedPosition
from tandemfeed.journal.commands.cli import main as journal
from tandemfeed.journal.typed_records.history import Hop, LatencyStatistics, MessageHistory
from tandemfeed.v1 import admin_pb2

WIDTH = 80


def shown(show: Callable[[Console], object]) -> str:
    """The text that a function prints to a console of 80 columns."""
    out = io.StringIO()
    show(Console(file=out, width=WIDTH))
    return out.getvalue()


def assert_fits(text: str, *values: str) -> None:
    """No line is too long, nothing is cut off, and these values are on one line each."""
    assert max(map(len, text.splitlines())) <= WIDTH, text
    assert "…" not in text, text
    for value in values:
        assert value in text, text


def wide_status() -> admin_pb2.GetStatusReply:
    reply = admin_pb2.GetStatusReply()
    status = reply.feeds.add(epoch=12_345, active_adapter_id=1, subscriber_count=200, lease_ttl_ns=600_000_000)
    status.feed.name, status.feed.feed_id, status.feed.session = "european-equities", 65_535, 20261121
    for adapter_id in (1, 2):
        row = status.adapters.add(attending=True)
        row.adapter.adapter_id, row.adapter.name = adapter_id, f"frankfurt-{adapter_id}"
        row.adapter.replica_state, row.adapter.incarnation = "resynchronizing", 4_294_967_295
        for channel_id in (1, 2):
            channel = row.state.channels.add(channel_id=channel_id)
            channel.position.epoch, channel.position.next_message_seq = 12_345, 9_876_543_210
        health = row.state.health
        health.score, health.memory_available_ratio, health.cpu_ratio = 0.98, 1.0, 1.0
        health.messages_per_second, health.source_lag_messages, health.error_count = 1_234_567.0, 123_456, 1_234
        row.state.refused_messages["no_such_message_type"] = 1_234_567
        row.failed_reason = (
            "" if adapter_id == 1 else "taken out by the operator [night shift], because its network card loses packets"
        )
    for number in range(1, 4):
        stream = status.feed.source_streams.add(source_stream_id=number, name="Letters A to M")
        stream.group = "239.192.117.201:57011"
    status.feed.channels.add(channel_id=64, topic="european-equities.level1.ticks", source_stream_ids=[1, 2, 3])
    return reply


def test_the_status_of_a_feed_fits() -> None:
    text = shown(lambda console: print_status(wide_status(), console))
    assert_fits(text, "frankfurt-1 *", "resynchronizing", "9876543210", "12345", "0.98", "4294967295", "[night shift]")


def test_the_list_of_feeds_fits() -> None:
    text = shown(lambda console: print_feeds(wide_status(), console))
    assert_fits(text, "european-equities.level1.ticks", "1 Letters A to M", "239.192.117.201:57011")


def wide_figures() -> dict[str, object]:
    return {
        "feed": "european-equities", "messages": 9_876_543_210, "messages_per_second": 1_234_567.8,
        "latency_us": {"p50": 123_456.7, "p99": 1_234_567.8, "max": 12_345_678.9}, "gaps": 12_345,
        "source_gaps": 12_345, "filled": 12_345, "diverged": 12_345, "replay_requests": 12_345,
        "duplicates": 9_876_543_210, "takeovers": 1_234, "refusals": {"forged": 1_234_567}, "alarm": None,
        "channels": {
            "64": {
                "topic": "equities.level1", "epoch": 12_345, "next_message_seq": 9_876_543_210,
                "distrusted": [{"adapter_id": 2, "incarnation": 4_294_967_295}],
                "next_source_seqs": {"1": 9_876_543_210, "2": 9_876_543_210},
            }
        },
    }  # fmt: skip


def test_the_live_view_of_a_subscription_fits() -> None:
    event = "12:00:00 Gap(channel_id=64, first_message_seq=9876543210, [red] in square brackets)"
    panel = render(wide_figures(), {1: "A to M", 2: "N to Z"}, [event])
    text = shown(lambda console: console.print(panel))
    assert_fits(text, "64 equities.level1", "12,345", "9,876,543,210", "1 A to M", "[red]")


QUIET = Hiccups(0, 10_000_000, (), {})
STALL = {"p50": 123.4, "p99": 12_345.6, "max": 12_345.6}
ROW = {
    "fault": "cut-active-from-backups", "rounds": 1_000, "lost": 123, "duplicated": 123, "out_of_order": 1_234,
    "content_wrong": 0, "stall_ms": STALL, "undisturbed_stall_ms": STALL, "transmit_stall_ms": STALL,
    "source_stall_ms": STALL, "return_stall_ms": STALL, "stall_aim_ms": None, "hiccup_ms": STALL,
    "return_hiccup_ms": STALL,
}  # fmt: skip


def test_the_ledger_of_a_drill_fits() -> None:
    text = shown(lambda console: print_ledger([ROW], [], console))
    assert_fits(text, "cut-active-from-backups", "1000", "123.4", "12346", "1,234")


def test_the_rounds_of_a_drill_fit() -> None:
    figures = RoundFigures(1_000, 1, "killed a", 2, 1_234, 1_234, 1_234, *[12_345.6] * 7, {})
    text = shown(lambda console: print_rounds(DrillResult([], [figures], {}, QUIET, ROW), console))
    assert_fits(text, "1,234", "12345.6", "cut-active-from-backups")


def test_the_report_of_the_demo_fits() -> None:
    figures = {
        "sent": 9_876_543_210, "delivered": 9_876_543_210, "lost": 1_234_567, "duplicated": 1_234_567,
        "out_of_order": 1_234_567, "content_wrong": 1_234_567, "longest_stall_ms": 123_456.7,
        "source_stall_ms": 123_456.7, "hiccup_ms": 123_456.7,
        "takeovers": [{"stall_ms": 123_456.7, "source_stall_ms": 123_456.7, "hiccup_ms": 123_456.7}],
        "latency_us": {"p50": 1e8, "p99": 1e8, "max": 1e8},
    }  # fmt: skip
    title = "tandemfeed demo: two kills of the active adapter"
    text = shown(lambda console: print_report(title, figures, console))
    assert_fits(text, "9,876,543,210", "longest stall around takeover 1", "machine", "123456.7 ms", title)


def test_the_information_about_a_journal_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path.parent / "orders"
    with Journal.open(folder, block_size=1 << 20) as opened:
        index = opened.append(b"record")
        NamedPosition(folder / "tailers" / "end-of-day-reconciliation.position").store(index)
        assert journal(["info", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    tables = "\n".join(line for line in lines if str(folder) not in line)  # a path is as long as it is
    assert_fits(tables, "end-of-day-reconciliation", "appended to", f"{index:#018x}")


def test_latencies_fit() -> None:
    statistics = LatencyStatistics()
    for count in range(3):
        end_ns = 10 ** (3 * count + 3)
        statistics.add(MessageHistory((Hop(100, 0, 0, 1), Hop(101, 9, end_ns, 2 * end_ns + 1))))
    text = str(statistics)
    assert_fits(text, "100 to 101", "1.00 s", "1 ns")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["admin"],
        ["admin-server"],
        ["adapter"],
        ["convert"],
        ["subscribe"],
        ["journal"],
        ["demo"],
        ["drill"],
        ["bench"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_help_fits(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with contextlib.suppress(SystemExit):
        command([*arguments, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH


def test_a_policy_fits() -> None:
    name, pattern = "n" * 20, "equities.xetra.trades"
    rule = admin_pb2.PolicyRule(line=1_000, to=[name], actions=["administer"], patterns=[pattern], until_unix_ns=1)
    identity = admin_pb2.PolicyIdentity(name=name, roles=["admin", "client"], groups=["desk"], calls_per_second_max=0.5)
    reply = admin_pb2.ShowPolicyReply(file="policy.toml", identities=[identity], rules=[rule])
    assert_fits(shown(lambda console: print_policy(reply, console)), name, pattern, "administer")


def test_the_list_of_benchmarks_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench([]) == 0
    assert_fits(capsys.readouterr().out, "queue_checkpoint")
