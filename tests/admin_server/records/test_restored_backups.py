"""A restored backup is detected: its keys, and the tokens of its time, are of no use."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemfeed.admin_server.audit.files import audit_files
from tandemfeed.admin_server.feed.members.start_limits import BURST
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.server_proofs import epoch_statement
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.sealing.epoch_proofs import encode_epoch_proof
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import WAIT_S, Adapter, started_when_allowed
from tests.admin_server.cluster_files import POLICY, ca_of, channel_as, running_server, secret_of
from tests.admin_server.subscriber_by_hand import grants, keys_of

DATABASE = "leases.sqlite"


def key_ids(server: AdminServer) -> set[int]:
    """The keys that a reader would open packets with, now or soon: those that do not expire within a minute."""
    broker = server.brokers["equities"]
    ends = time.time_ns() + 60_000_000_000
    keys = [*broker.key_ring.keys([1]), *broker.key_ring.source_keys()]
    return {key.key_id for key in keys if key.expires_unix_ns > ends}


def audit_of(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in audit_files(folder) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def reader_of(server: AdminServer) -> Login:
    return login(server.endpoint, ca_of(server), "reader", secret_of(server, "reader"))


def feeds_of(server: AdminServer, session: Login) -> admin_pb2.ListFeedsReply:
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        return admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest())


@contextmanager
def state_of_two_runs(tmp_path: Path) -> Iterator[tuple[Path, Path, set[int], Login]]:
    """A state folder, a copy of it from before its last run, the keys then, and a login of then."""
    with running_server(tmp_path) as server:
        session = reader_of(server)
        known, folder = key_ids(server), server.folder.path
    shutil.copytree(folder, tmp_path / "backup")
    with running_server(tmp_path) as server:
        assert key_ids(server) == known, "an ordinary restart replaces no key"
        feeds_of(server, session)
        server.brokers["equities"].key_ring.replace([1])
    assert not audit_of(folder, "records restored")
    yield folder, tmp_path / "backup", known, session


def restore_folder(folder: Path, backup: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


def restore_database(folder: Path, backup: Path) -> None:
    (folder / DATABASE).write_bytes((backup / DATABASE).read_bytes())  # keeps the inode


def remove_database(folder: Path, _backup: Path) -> None:
    (folder / DATABASE).unlink()


def restore_database_and_audit_log(folder: Path, backup: Path) -> None:
    for name in (DATABASE, "audit.jsonl"):
        (folder / name).write_bytes((backup / name).read_bytes())


@pytest.mark.parametrize("restore", [restore_folder, restore_database, restore_database_and_audit_log, remove_database])
def test_restoring_a_backup_replaces_every_key_and_refuses_every_token_once(
    tmp_path: Path, restore: Callable[[Path, Path], None]
) -> None:
    with state_of_two_runs(tmp_path) as (folder, backup, former, session):
        restore(folder, backup)
        with running_server(tmp_path) as server:
            fresh = key_ids(server)
            assert fresh
            assert not fresh & former
            with pytest.raises(grpc.RpcError, match="a key that is not accepted; authenticate again") as refused:
                feeds_of(server, session)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            again = reader_of(server)
            assert feeds_of(server, again).feeds
            (key,) = Adapter(server, "a").registered.token_keys
            assert not TokenVerifier(ADMIN_SERVER, [key]).accepts(session.token)
        with running_server(tmp_path) as server:
            assert key_ids(server) == fresh, "once is enough"
            feeds_of(server, again)
            with pytest.raises(grpc.RpcError, match="a key that is not accepted"):
                feeds_of(server, session)
        assert len(audit_of(folder, "records restored")) == 1


def test_a_folder_that_was_moved_or_whose_server_was_killed_raises_no_alarm(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        known = key_ids(server)
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    mark = (tmp_path / "state" / "records.mark").stat()
    with running_server(tmp_path) as server:
        assert key_ids(server) == known
        assert (tmp_path / "state" / "records.mark").stat().st_ctime_ns != mark.st_ctime_ns
    assert not audit_of(tmp_path / "state", "records restored")


def set_back(folder: Path, *statements: str) -> None:
    """Set records back as a whole machine is, which no file of it can show."""
    with sqlite3.connect(folder / DATABASE) as database:
        for statement in statements:
            database.execute(statement)


def test_an_adapter_that_presents_an_unknown_start_proves_a_restored_backup(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        known = key_ids(server)
        adapter = Adapter(server, "a")
        adapter.vanish()
        folder = server.folder.path
    set_back(folder, "DELETE FROM starts", "DELETE FROM sqlite_sequence", "DELETE FROM processes")
    with running_server(tmp_path) as server:
        assert key_ids(server) == known
        back = Adapter(server, "a", resumes=adapter)
        assert back.start.incarnation > adapter.start.incarnation
        assert not key_ids(server) & known
        assert not {key.public_key for key in back.registered.token_keys} & {
            key.public_key for key in adapter.registered.token_keys
        }
        back.vanish()
    (alarm,) = audit_of(folder, "records restored")
    assert alarm["why"] == "a presents start 1, which the records (up to 0) do not know"


def test_an_adapter_in_an_unknown_epoch_proves_a_restored_backup_and_later_epochs_are_higher(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        known = key_ids(server)
        adapter = started_when_allowed(server, "a")
        adapter.await_order("lease_granted")
        adapter.report(renew_epoch=1_000, epoch_proof=epoch_proof_of(server, 1_000))
        adapter.await_order("lease_lost")
        adapter.vanish()
        adapter = started_when_allowed(server, "a")
        assert adapter.await_order("lease_granted").lease_granted.epoch > 1_000
        assert not key_ids(server) & known
        fresh = key_ids(server)
        adapter.report(renew_epoch=1 << 31)  # without a proof
        await_doubt(server, "a")
        adapter.vanish()
        assert key_ids(server) == fresh
        assert server.brokers["equities"].lease.epoch < 10_000
        folder = server.folder.path
    (alarm,) = audit_of(folder, "records restored")
    assert alarm["why"] == "a was in epoch 1000; the records know epochs up to 64"


def epoch_proof_of(server: AdminServer, epoch: int) -> bytes:
    """The datagram that proves that this server granted an epoch to adapter a."""
    feed_id = server.brokers["equities"].feed.feed_id
    return encode_epoch_proof(feed_id, 1, epoch, server.token_keys.prove(epoch_statement(feed_id, 1, epoch)))


def await_doubt(server: AdminServer, name: str) -> admin_pb2.DoubtedClaim:
    """What the server does not believe of an adapter."""
    give_up_at_s = time.monotonic() + WAIT_S
    while time.monotonic() < give_up_at_s:
        for row in server.brokers["equities"].status().adapters:
            if row.adapter.name == name and row.doubts:
                return row.doubts[0]
        time.sleep(0.01)
    raise AssertionError("no doubt")


@pytest.mark.parametrize("epoch", [1_000, 2**31, 2**32 - 1])
@pytest.mark.parametrize("proof", ["none", "of an older epoch", "of another key"])
def test_one_adapters_word_on_an_epoch_replaces_no_key_and_moves_no_epoch(
    tmp_path: Path, epoch: int, proof: str
) -> None:
    with running_server(tmp_path) as server:
        known, token_keys = key_ids(server), {key.public_key for key in server.token_keys.accepted()}
        adapter = started_when_allowed(server, "a")
        granted = adapter.await_order("lease_granted").lease_granted.epoch
        shown = b"" if proof == "none" else epoch_proof_of(server, granted)
        if proof == "of another key":
            shown = shown[:16] + bytes(8) + shown[24:]
        adapter.report(renew_epoch=epoch, epoch_proof=shown)
        doubt = await_doubt(server, "a")
        assert f"epoch {epoch}; the records know epochs up to" in doubt.what
        adapter.vanish()
        assert key_ids(server) == known
        assert {key.public_key for key in server.token_keys.accepted()} == token_keys
        adapter = started_when_allowed(server, "a")
        assert adapter.await_order("lease_granted").lease_granted.epoch < granted + 10
        adapter.vanish()
        folder = server.folder.path
    assert not audit_of(folder, "records restored")
    (refused,) = audit_of(folder, "claim refused")
    assert refused["adapter"] == "a"


def test_a_proof_from_before_a_restored_backup_counts_once_its_key_is_replaced(tmp_path: Path) -> None:
    with state_of_two_runs(tmp_path) as (folder, backup, *_):
        with running_server(tmp_path) as server:
            proof = epoch_proof_of(server, 1_000)
        restore_database(folder, backup)
        with running_server(tmp_path) as server:  # it has replaced the key that made the proof, before any adapter came
            adapter = started_when_allowed(server, "a")
            adapter.report(renew_epoch=1_000, epoch_proof=proof)
            adapter.await_order("lease_lost")
            adapter.vanish()
            adapter = started_when_allowed(server, "a")
            assert adapter.await_order("lease_granted").lease_granted.epoch > 1_000
            adapter.vanish()


def test_a_proof_counts_no_more_once_its_key_is_said_to_be_stolen(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        proof = epoch_proof_of(server, 1_000)
        server.token_keys.drop_former("operator", "laptop stolen")
        adapter = started_when_allowed(server, "a")
        adapter.report(renew_epoch=1_000, epoch_proof=proof)
        assert "epoch 1000" in await_doubt(server, "a").what
        adapter.vanish()


def test_a_start_that_the_server_did_not_register_is_no_proof_of_a_restored_backup(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        known = key_ids(server)
        adapter = Adapter(server, "a")
        adapter.vanish()
        folder = server.folder.path
    set_back(folder, "DELETE FROM starts", "DELETE FROM sqlite_sequence", "DELETE FROM processes")
    with running_server(tmp_path) as server:
        back = Adapter(server, "a", resumes=adapter, proves=False)
        assert "presents start 1" in await_doubt(server, "a").what
        back.vanish()
        assert key_ids(server) == known
    assert not audit_of(folder, "records restored")


def test_an_adapter_that_joins_and_leaves_in_a_loop_is_limited_and_named(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        other = Adapter(server, "b")

        def flap() -> None:
            for _ in range(10 * BURST):
                Adapter(server, "a", attends=False, replace=True).vanish()

        with pytest.raises(grpc.RpcError, match="a begins new starts in a loop; the next one may begin in") as refused:
            flap()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # an adapter tries again on this status
        assert await_doubt(server, "a").what == "begins new starts in a loop"
        other.report()
        other.vanish()
        Adapter(server, "b", replace=True).vanish()


def test_a_right_that_ends_while_no_server_runs_replaces_keys_at_the_next_start(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, channel_as(server, "reader") as channel:
        (key,) = keys_of(next(grants(channel)))
        assert {key.key_id} <= key_ids(server)
        folder = server.folder.path
    without = POLICY.replace("equities.#", "bonds.#")
    with running_server(tmp_path, policy_text=without) as server:
        fresh = key_ids(server)
        assert key.key_id not in fresh
        adapter = Adapter(server, "a")
        assert [each.identity for each in adapter.registered.revoked_tokens] == ["reader"]
        adapter.vanish()
    (replaced,) = audit_of(folder, "keys replaced")
    assert (replaced["topics"], replaced["lost_by"]) == (["equities.ticks"], ["reader"])
    with running_server(tmp_path, policy_text=without) as server:
        assert key_ids(server) == fresh


def test_a_grant_that_cannot_be_recorded_is_not_handed_out(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, channel_as(server, "reader") as channel:
        records = server.brokers["equities"].rights._records
        server.brokers["equities"].rights._given.clear()
        records._database._connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)  # type: ignore[attr-defined]
        with pytest.raises(grpc.RpcError) as refused:
            next(grants(channel))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        records._database._connection.set_authorizer(None)  # type: ignore[attr-defined]
        assert keys_of(next(grants(channel)))
