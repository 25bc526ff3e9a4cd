"""Every loss that a subscription observes is noticed, joined, and kept on the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import Dropped, Gap, MergerConfig, NotStored, StoredAgain, read_losses
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.losses import loss_report
from tandemfeed.client_lib.losses.loss import JOINED_NS, Loss, LossCause, Outcome
from tandemfeed.client_lib.losses.loss_report import LINE_COUNT, LINE_SIZE, LossReport
from tandemfeed.client_lib.losses.loss_watch import REORDERED_COUNT, LossWatch
from tandemfeed.deploy.command import main as tandemfeed
from tandemfeed.feedcore.merge.effects import ProvisionalGap, SessionChanged, SourceGap
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tests.client_lib.toy_cluster import CHANNEL_ID, SESSION, TOPIC, ToyCluster, collect, heartbeat, packet
from tests.small_disk import SmallDisk

LOSS = Loss(10, 10, "equities", TOPIC, SESSION, LossCause.NETWORK, Outcome.REPLAYED, "messages", 5, 8, 3, 1, "toy-1")


class Scene:
    """A watch of two adapters' streams."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.watch = LossWatch(self._grant, lambda: self.now_ns)

    def _grant(self) -> Any:
        class Adapter:
            name = "toy-1"

        class Grant:
            feed_name, session = "equities", SESSION
            topics_by_channel, adapters = {CHANNEL_ID: TOPIC}, {1: Adapter}

        return Grant

    def hear(self, *counters: int, first_input_seq: int = 1, incarnation: int = 7, adapter_id: int = 1) -> None:
        for counter in counters:
            each = packet(first_input_seq, first_input_seq, 1, adapter_id=adapter_id)
            self.watch.on_packet(each, incarnation, counter)

    def found(self) -> list[tuple[Any, ...]]:
        return [(each.unit, each.first, each.end, each.adapter, each.outcome.value) for each in self.watch.take()]


def test_packets_that_one_adapters_stream_lacks_are_noticed_when_they_cannot_be_late_any_more() -> None:
    scene = Scene()
    scene.hear(100, 101, 105, 103)
    assert scene.found() == []
    scene.hear(*range(106, 102 + REORDERED_COUNT))
    assert scene.found() == [("packets", 102, 103, "toy-1", "covered")]
    scene.hear(102 + REORDERED_COUNT, 103 + REORDERED_COUNT)
    assert scene.found() == [("packets", 104, 105, "toy-1", "covered")]


def test_a_restarted_adapter_counts_from_anew() -> None:
    scene = Scene()
    scene.hear(100, 101)
    scene.hear(5, 6, incarnation=8)
    scene.hear(900, incarnation=7)
    scene.hear(*range(7, 200), incarnation=8)
    assert scene.found() == []


def test_history_is_no_loss_and_what_follows_the_first_live_packet_is() -> None:
    scene = Scene()
    history = packet(1, 1, 20, flags=OutputFlag.RETRANSMISSION)
    scene.watch.on_delivered(history)
    scene.hear(1, first_input_seq=100)
    scene.watch.on_delivered(history)
    assert scene.found() == []
    scene.watch.on_delivered(packet(100, 100, 5, flags=OutputFlag.RETRANSMISSION))
    scene.watch.on_delivered(packet(105, 105, 5, flags=OutputFlag.RETRANSMISSION))
    scene.watch.on_delivered(packet(110, 110, 5))
    assert scene.found() == [("messages", 100, 110, "toy-1", "replayed")]
    scene.watch.on_event(SessionChanged(CHANNEL_ID, SESSION, SESSION + 1, is_complete=True))
    scene.watch.on_delivered(packet(1, 1, 2, flags=OutputFlag.RETRANSMISSION)._replace(session=SESSION + 1))
    assert scene.found() == [("messages", 1, 3, "toy-1", "replayed")]


def test_what_was_not_delivered_has_its_cause() -> None:
    scene = Scene()
    scene.watch.on_event(Gap(CHANNEL_ID, 5, 8, 5, 8))
    scene.watch.on_filled(packet(5, 5, 3))
    scene.watch.on_event(SourceGap(CHANNEL_ID, 2, 10, 12))
    scene.watch.on_event(ProvisionalGap(CHANNEL_ID, 2, 20, 22))
    scene.watch.on_event(Dropped(CHANNEL_ID, SESSION, 30, 50, 15, ()))
    scene.watch.is_behind = True
    scene.watch.on_event(Gap(CHANNEL_ID, 60, 62, 60, 62))
    found = [(each.cause.value, each.outcome.value, each.unit, each.first, each.count) for each in scene.watch.take()]
    assert found == [
        ("network", "lost", "messages", 5, 3),
        ("network", "filled", "messages", 5, 3),
        ("source", "lost", "source messages", 10, 3),
        ("network", "lost", "source messages", 20, 3),
        ("slow application", "lost", "messages", 30, 15),
        ("slow application", "lost", "messages", 60, 2),
    ]


def test_losses_of_one_kind_that_follow_within_a_second_are_one_entry() -> None:
    later = replace(LOSS, first_at_ns=11, last_at_ns=11, first=9, end=10, count=1)
    assert LOSS.joined(later) == replace(LOSS, last_at_ns=11, end=10, count=4, times=2)
    assert LOSS.joined(replace(later, adapter="toy-2")) is None
    assert LOSS.joined(replace(later, first_at_ns=LOSS.last_at_ns + JOINED_NS)) is None


def test_a_report_keeps_the_newest_entries_in_a_file_of_a_fixed_size(tmp_path: Path) -> None:
    report = LossReport(tmp_path, "equities")
    losses = [replace(LOSS, first_at_ns=at * JOINED_NS, last_at_ns=at * JOINED_NS) for at in range(LINE_COUNT + 10)]
    assert report.write(losses[:7]) is None
    assert read_losses(tmp_path) == losses[:7], "read while it is in use"
    report.close()
    next_run = LossReport(tmp_path, "equities")
    assert next_run.write(losses[7:]) is None
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == LINE_SIZE * LINE_COUNT
    assert read_losses(tmp_path) == losses[10:]
    assert read_losses(tmp_path, "futures") == []


def test_each_subscription_that_runs_has_a_file_and_later_ones_continue_them(tmp_path: Path) -> None:
    first, second = LossReport(tmp_path, "equities"), LossReport(tmp_path, "equities")
    first.write([LOSS])
    second.write([LOSS])
    assert len(list(tmp_path.iterdir())) == 2
    first.close()
    third = LossReport(tmp_path, "equities")
    third.write([LOSS])
    assert len(list(tmp_path.iterdir())) == 2
    assert len(read_losses(tmp_path)) == 3


def test_entries_survive_the_kill_of_their_process_and_a_torn_one_is_left_out(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from tests.client_lib.losses.test_loss_report import LOSS, LossReport
LossReport(Path(sys.argv[1]), "equities").write([LOSS])
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, cwd=Path.cwd())
    assert killed.returncode == -signal.SIGKILL
    assert read_losses(tmp_path) == [LOSS]
    (file,) = tmp_path.iterdir()
    with open(file, "r+b") as opened:
        os.pwrite(opened.fileno(), json.dumps(LOSS.to_json())[:40].encode(), LINE_SIZE)
    assert read_losses(tmp_path) == [LOSS]


def test_a_full_disk_is_reported_once_with_a_remedy_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "disk"
    with SmallDisk(folder, "1m"):
        report = LossReport(folder, "equities")
        failed = report.write([LOSS])
        assert isinstance(failed, NotStored)
        assert failed.reason == (
            f"cannot write {folder}/equities-0.losses: No space left on device; losses are kept in memory meanwhile; "
            "free some space on its disk"
        )
        monkeypatch.setattr(loss_report, "LINE_COUNT", 8)
        assert report.write([LOSS]) is None, "not before some time has passed"
        assert read_losses(folder) == []
        report._retry_at_ns = 0
        assert report.write([LOSS]) == StoredAgain(f"{folder}/equities-0.losses")
        assert read_losses(folder) == [replace(LOSS, count=9, times=3)]
        report.close()


def test_a_subscription_records_its_losses_and_the_command_shows_them(
    cluster: ToyCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = cluster.adapters
    config = MergerConfig(declare_after_ns=5_000_000_000)
    with cluster.connect() as feed:
        subscription = feed.subscribe(TOPIC, merger_config=config, loss_report=tmp_path)
        collect(subscription, lambda _: one.send(heartbeat(1)) or subscription.statistics().channels[1].epoch == 1)  # type: ignore[func-returns-value]
        one.send(packet(1, 1, 2))
        for adapter in (one, other):
            adapter.lose(packet(3, 3, 3))
        one.send(packet(6, 6, 2), packet(10, 10, 2))
        collect(subscription, lambda items: any(isinstance(item, Gap) for item in items))
        collect(subscription, lambda items: True)
    assert [(each.unit, each.first, each.end, each.outcome) for each in read_losses(tmp_path)] == [
        ("messages", 3, 6, Outcome.REPLAYED),
        ("messages", 8, 10, Outcome.LOST),
    ]
    assert tandemfeed(["losses", "--folder", str(tmp_path)]) == 0
    assert "no adapter had them" in capsys.readouterr().out
    assert tandemfeed(["losses", "--folder", str(tmp_path), "--json", "--lost"]) == 0
    assert json.loads(capsys.readouterr().out)["first"] == 8
    assert tandemfeed(["losses", "--folder", str(tmp_path), "--since", "2999-01-01"]) == 0
    assert capsys.readouterr().out == "no losses\n"
    assert tandemfeed(["losses", "--folder", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_stops_no_stream(cluster: ToyCluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    one = cluster.adapters[0]
    with cluster.connect() as feed:
        subscription = feed.subscribe(TOPIC, loss_report=tmp_path / "file" / "losses")
        collect(subscription, lambda _: one.send(heartbeat(1)) or subscription.statistics().channels[1].epoch == 1)  # type: ignore[func-returns-value]
        one.send(packet(1, 1, 2))
        one.lose(packet(3, 3, 3))
        one.send(packet(6, 6, 2))
        items = collect(
            subscription, lambda items: sum(each.message_count for each in items if isinstance(each, Batch)) == 7
        )
        items += collect(subscription, lambda found: any(isinstance(item, NotStored) for item in items + found))
    (failed,) = [item for item in items if isinstance(item, NotStored)]
    assert failed.reason == (
        f"cannot write {tmp_path}/file/losses: File exists ({tmp_path}/file); losses are kept in memory meanwhile; "
        "repair the disk or the folder"
    )
