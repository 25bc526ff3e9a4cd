"""What `status --check` says about real processes: killed, paused, and without a source."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemfeed.admin_server.command.admin_command import main as admin
from tests.adapter.processes.clusters import Cluster, Feed, running_cluster

pytestmark = pytest.mark.processes
WAIT_S = 60.0


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs `status --check`; returns its exit status and its line."""

    def run(cluster: Cluster, *options: str) -> tuple[int, str]:
        state = cluster.folder / "state"
        monkeypatch.setenv("TANDEMFEED_ADMIN", cluster.server.endpoint)
        monkeypatch.setenv("TANDEMFEED_CA", str(state / "ca.pem"))
        monkeypatch.setenv("TANDEMFEED_IDENTITY", "operator")
        monkeypatch.setenv("TANDEMFEED_SECRET_FILE", str(state / "secrets" / "operator.secret"))
        capsys.readouterr()
        status = admin(["status", "--check", *options])
        return status, capsys.readouterr().out

    return run


def await_text(run: Callable[[], tuple[int, str]], text: str) -> tuple[int, str]:
    """Check again until the line contains a text."""
    end_s = time.monotonic() + WAIT_S
    while text not in (found := run())[1]:
        assert time.monotonic() < end_s, found
        time.sleep(0.1)
    return found


def test_check_tells_what_happened_to_each_process(
    tmp_path: Path, check: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with running_cluster(tmp_path, Feed("abc")) as cluster:
        cluster.start_adapters("abc")
        for stream in (1, 2):
            cluster.source.send(stream, 10)
        active = cluster.await_active("equities", synchronized_count=2).active.adapter_id
        quiet = ("--source-silence", "0")
        status, line = await_text(lambda: check(cluster, *quiet), "OK")
        assert status == 0
        # The source by hand sends no heartbeats, so its streams fall silent.
        status, line = await_text(lambda: check(cluster, "--source-silence", "0.5"), "source stream 2 s2 is silent for")
        assert status == 2
        assert line.startswith("TANDEMFEED CRITICAL - equities: source stream 1")
        backups = [name for number, name in enumerate("abc", 1) if number != active]
        cluster.kill(backups[0])
        status, line = await_text(lambda: check(cluster, *quiet), f"{backups[0]} is dead or away since")
        assert (status, line.count("\n")) == (1, 1)
        cluster.adapters[backups[1]].signal(signal.SIGSTOP)
        try:
            # First it is silent; on a slow machine the server may notice only the end of its connection.
            status, line = await_text(lambda: check(cluster, *quiet), f"{backups[1]} is ")
            assert status == 2
            assert "no backup is synchronized" in line
            assert re.search(f"{backups[1]} is (connected and silent for|dead or away since)", line)
            capsys.readouterr()
            assert admin(["status", "--json"]) == 0
            (feed,) = json.loads(capsys.readouterr().out)["feeds"]
            states = {row["adapter"]["name"]: row for row in feed["adapters"]}
            assert states[backups[0]]["attending"] is False
            assert int(states[backups[0]]["away_since_unix_ns"]) > 0
            journal = states["abc"[active - 1]]["state"]["output_journal"]
            assert int(journal["disk_size_bytes"]) > int(journal["disk_free_bytes"]) > 0
        finally:
            cluster.adapters[backups[1]].signal(signal.SIGCONT)


@contextmanager
def dropped(group: str) -> Iterator[None]:
    """Drop what arrives at a multicast group, in this test's network namespace."""
    if shutil.which("nft") is None or os.environ.get("TANDEMFEED_ISOLATED") != "1":
        pytest.skip("needs nftables and a network namespace of its own")
    port = group.rpartition(":")[2]
    rules = "add table inet mute\nadd chain inet mute in {{ type filter hook input priority 0; }}\n"
    rules += "add rule inet mute in udp dport {} drop\n"
    subprocess.run(["nft", "-f", "-"], input=rules.format(port), text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "mute"], check=True)


def test_an_adapter_whose_multicast_reaches_no_other_is_named_and_is_refused_as_an_heir(
    tmp_path: Path, check: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    feed = Feed("ab")
    with running_cluster(tmp_path, feed) as cluster:
        cluster.start_adapters("ab")
        for stream in (1, 2):
            cluster.source.send(stream, 10)
        active_id = cluster.await_active("equities", synchronized_count=1).active.adapter_id
        active, backup = ("a", "b") if active_id == 1 else ("b", "a")
        quiet = ("--source-silence", "0")
        await_text(lambda: check(cluster, *quiet), "OK")
        with dropped(feed.output_group(backup, 1)):
            text = f"the multicast of {backup} reaches no adapter: not received by {active} for"
            status, line = await_text(lambda: check(cluster, *quiet), text)
            assert status == 2
            assert "no backup is synchronized" in line
            with pytest.raises(SystemExit):
                admin(["failover", "equities", "--to", backup, "--yes"])
            assert f"{backup} transmits, but its multicast reaches no adapter" in capsys.readouterr().err
        await_text(lambda: check(cluster, *quiet), "OK")
        with dropped(feed.output_group(active, 1)):
            text = f"the multicast of {active} reaches no adapter: not received by {backup} for"
            status, line = await_text(lambda: check(cluster, *quiet), text)
            assert status == 2
            assert "no backup is synchronized" in line
            began = f"critical: the multicast of {active} reaches no adapter: not received by {backup} for"
            _await_history(capsys, "alert began", began)
        await_text(lambda: check(cluster, *quiet), "OK")
        _await_history(capsys, "alert ended", f"the multicast of {active} reaches no adapter")


def _await_history(capsys: pytest.CaptureFixture[str], event: str, reason: str) -> None:
    """Wait until the feed's history has an event whose reason begins with a text."""
    end_s = time.monotonic() + WAIT_S
    history = _history(capsys)
    while not any(each == event and why.startswith(reason) for each, why in history):
        assert time.monotonic() < end_s, "\n".join(map(str, history))
        time.sleep(0.2)
        history = _history(capsys)


def _history(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    capsys.readouterr()
    assert admin(["history", "equities", "--json"]) == 0
    return [(event["event"], event["reason"]) for event in json.loads(capsys.readouterr().out)["events"]]
