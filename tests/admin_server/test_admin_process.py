"""The server as a separate process: killed, restarted, stopped, and queried from the command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.records.state_folder import StateFolder
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.settings_file import SettingsError
from tests.admin_server.adapter_by_hand import Adapter, started_when_allowed
from tests.admin_server.cluster_files import CLUSTER, secret_of, write_settings

STOP_TIMEOUT_S = 60
pytestmark = pytest.mark.processes
# Long enough that a lease outlives a restart of the server, however slow the machine.
LONG_LEASE = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 60000")


class ServerProcess:
    """A `tandemfeed admin-server`."""

    def __init__(self, folder: Path, *options: str, cluster: str = CLUSTER) -> None:
        files = [str(path) for path in write_settings(folder, cluster)]
        command = [sys.executable, "-m", "tandemfeed.deploy.command", "admin-server", "--listen", "127.0.0.1:0"]
        command += ["--cluster", files[0], "--policy", files[1], "--state", str(folder / "state"), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, f"it exited with {self.process.wait()}"
        self.endpoint: str = json.loads(ready)["admin"]
        self.folder = SimpleNamespace(path=folder / "state")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def server_process(folder: Path, *options: str, cluster: str = CLUSTER) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, *options, cluster=cluster)
    try:
        yield server
    finally:
        server.kill()


def test_a_killed_server_never_reuses_an_incarnation_or_an_epoch(tmp_path: Path) -> None:
    incarnations, epochs = [], []
    for _ in range(3):
        with server_process(tmp_path) as server:
            adapter = started_when_allowed(server, "a")
            incarnations.append(adapter.registered.self.incarnation)
            epochs.append(adapter.await_order("lease_granted").lease_granted.epoch)
            server.kill()  # kill the server immediately after the grant
            adapter.vanish()
    assert incarnations == sorted(set(incarnations))
    assert epochs == sorted(set(epochs))


def test_the_holder_continues_in_its_epoch_after_the_server_was_killed(tmp_path: Path) -> None:
    with server_process(tmp_path, cluster=LONG_LEASE) as server:
        holder = Adapter(server, "a")
        incarnation = holder.registered.self.incarnation
        epoch = holder.await_order("lease_granted").lease_granted.epoch
        server.kill()
        holder.vanish()
    with server_process(tmp_path, cluster=LONG_LEASE) as server:
        backup = Adapter(server, "b")
        backup.report(ReplicaState.SYNCHRONIZED, 50)
        seen = backup.await_order("cluster_changed").cluster_changed
        assert (seen.active_adapter_id, seen.epoch) == (1, epoch)
        holder = Adapter(server, "a", resumes=holder)
        assert holder.registered.self.incarnation == incarnation
        holder.report(ReplicaState.ACTIVE, renew_epoch=epoch, report_id=7)
        assert holder.await_order("lease_renewed").lease_renewed.epoch == epoch
        holder.vanish()  # it has renewed, so the end of its stream ends its lease again
        assert backup.await_order("lease_granted").lease_granted.epoch > epoch
        backup.vanish()


def test_a_stopped_server_exits_with_status_0_and_leaves_the_lease_to_its_holder(tmp_path: Path) -> None:
    with server_process(tmp_path, cluster=LONG_LEASE) as server:
        active, backup = Adapter(server, "a"), Adapter(server, "b")
        active.await_order("lease_granted")
        backup.report(ReplicaState.SYNCHRONIZED, 50)
        backup.await_order("cluster_changed")
        server.process.terminate()
        assert server.process.wait(STOP_TIMEOUT_S) == 0
        audit = (server.folder.path / "audit.jsonl").read_text()
        assert audit.count('"lease granted"') == 1
        assert '"lease vacated"' not in audit
        for adapter in (active, backup):
            adapter.vanish()


def test_the_admin_command_shows_feeds_and_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server_process(tmp_path) as server:
        state = server.folder.path
        options = ["--admin", server.endpoint, "--ca", str(state / "ca.pem"), "--identity", "operator"]
        options += ["--secret-file", str(state / "secrets" / "operator.secret")]
        adapter = Adapter(server, "a")
        epoch = adapter.await_order("lease_granted").lease_granted.epoch
        assert admin(["status", "--json", *options]) == 0
        (feed,) = json.loads(capsys.readouterr().out)["feeds"]
        assert (feed["epoch"], feed["active_adapter_id"], feed["adapters"][0]["attending"]) == (epoch, 1, True)
        assert (feed["adapters"][1]["attending"], feed["subscriber_count"]) == (False, 0)  # zeros are not left out
        assert admin(["status", *options]) == 0
        assert f"feed equities: epoch {epoch}" in capsys.readouterr().out
        assert admin(["feeds", *options]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in ("equities.ticks", "239.192.1.1:5001", "2 N-Z"))
        wrong = [*options[:-1], str(state / "secrets" / "reader.secret")]
        with pytest.raises(SystemExit, match="2"):
            admin(["status", *wrong])
        assert secret_of(server, "operator") not in capsys.readouterr().err
        adapter.vanish()


def test_the_admin_command_can_hand_over_fail_and_readmit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with server_process(tmp_path, cluster=LONG_LEASE) as server, ThreadPoolExecutor(1) as hands:
        state = server.folder.path
        options = ["--admin", server.endpoint, "--ca", str(state / "ca.pem"), "--identity", "operator"]
        options += ["--secret-file", str(state / "secrets" / "operator.secret")]
        active, backup = Adapter(server, "a"), Adapter(server, "b")
        epoch = active.await_order("lease_granted").lease_granted.epoch
        active.report(ReplicaState.ACTIVE, 51, renew_epoch=epoch)
        active.await_order("lease_renewed")
        backup.report(ReplicaState.SYNCHRONIZED, 51, report_id=3)
        while backup.await_order("report_heard").report_heard.report_id != 3:
            pass

        def obey() -> None:
            backup.accept_offer()
            active.await_order("hand_over")
            active.report(ReplicaState.SYNCHRONIZED, 51, released_epoch=epoch)

        obedience = hands.submit(obey)
        assert admin(["failover", "equities", "--to", "b", "--yes", *options]) == 0
        obedience.result(STOP_TIMEOUT_S)
        assert capsys.readouterr().out == f"feed equities: b is active in epoch {epoch + 1}\n"
        for words, complaint in (
            (["failover", "equities", "--to", "b", "--yes"], "FAILED_PRECONDITION: b is already active"),
            (
                ["fail", "equities", "a", "--reason", "slow", "--yes"],
                "FAILED_PRECONDITION: a is the last synchronised backup",
            ),
            (["readmit", "equities", "a"], "FAILED_PRECONDITION: a is neither failed nor drained"),
            (["readmit", "bonds", "a"], "NOT_FOUND: no feed 'bonds'; available to you: equities"),
        ):
            with pytest.raises(SystemExit, match="2"):
                admin([*words, *options])
            assert complaint in capsys.readouterr().err
        assert admin(["fail", "equities", "a", "--reason", "slow disk", "--force", "--yes", *options]) == 0
        assert capsys.readouterr().out == "feed equities: a is failed: slow disk\n"
        assert active.await_order("failed").failed.reason == "slow disk"
        assert admin(["status", *options]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in ("slow disk", "b *", "memory free", "51"))
        assert admin(["readmit", "equities", "a", "--json", *options]) == 0
        assert capsys.readouterr().out == "{}\n"
        active.await_order("readmitted")
        for adapter in (active, backup):
            adapter.vanish()


def test_hash_secret_prints_a_salted_verifier() -> None:
    command = [sys.executable, "-m", "tandemfeed.deploy.command", "admin", "hash-secret"]
    rows = [
        json.loads(subprocess.run(command, input="open sesame\n", text=True, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]
    assert set(rows[0]) == {"salt", "stored_key", "server_key", "iterations"}
    assert rows[0]["salt"] != rows[1]["salt"]


def test_a_server_that_cannot_start_says_why_and_exits_with_status_2(tmp_path: Path) -> None:
    cluster, policy = write_settings(tmp_path, cluster=CLUSTER.replace("feed_id = 1", "feed_id = 0"))
    command = [sys.executable, "-m", "tandemfeed.deploy.command", "admin-server", "--listen", "127.0.0.1:0"]
    command += ["--cluster", str(cluster), "--policy", str(policy), "--state", str(tmp_path / "state")]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=60)
    assert ended.returncode == 2
    assert (
        f"admin-server: {cluster}, line 3: feed[0].feed_id is 0; it must be an integer from 1 to 65535\n"
        in ended.stderr
    )
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{\n,", ": Expecting property name enclosed in double quotes: line 2 column 1 (char 2); it must be a JSON"),
        ('{"reader": 7}', ": Expected `object`, got `int` - at `$[...]`; it must be a JSON object with the output of"),
        ('{"reader": {"salt": "AA=="}}', ": verifier of 'reader': Object missing required field `stored_key`; it must"),
    ],
)
def test_invalid_credentials_are_refused_with_their_place(tmp_path: Path, content: str, error: str) -> None:
    StateFolder(tmp_path).close()
    path = tmp_path / "credentials.json"
    path.write_text(content)
    with pytest.raises(SettingsError) as refused:
        StateFolder(tmp_path)
    assert str(refused.value).startswith(f"{path}{error}")


def test_metrics_show_the_active_adapter(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with server_process(tmp_path, "--metrics-port", str(port)) as server:
        adapter = Adapter(server, "a")
        adapter.await_order("lease_granted")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            assert b'tandemfeed_active_adapter_id{feed="equities"} 1.0' in reply.read()
        adapter.vanish()
