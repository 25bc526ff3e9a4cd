"""What a server and its callers do on a host whose clock is set by an hour, back and forth. Run by `test_clock_steps`.

Everything is done immediately after each step: nothing may be refused or stand still until the clock has caught up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from tandemfeed.admin_server.audit.verification import verify
from tandemfeed.admin_server.identity.verifiers import verifier_of
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import PATIENT, ca_of, channel_as, running_server, secret_of
from tests.admin_server.subscriber_by_hand import grants, keys_of
from tests.stepped_clock import is_stepped, set_clock

HOUR = 3_600
SOON_S = 30.0
SECRETS = {"reader": ""}  # the present ones of identities that were given another than the first


def await_so(what: str, is_so: Callable[[], bool]) -> None:
    """Wait for a short while."""
    deadline = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def usable(keys: list[common_pb2.StreamKey]) -> bool:
    """Whether the newest of the keys can be used now."""
    return keys[-1].not_before_unix_ns <= time.time_ns() < keys[-1].expires_unix_ns


def check_reader(server: AdminServer) -> None:
    """A reader logs in and gets keys."""
    session = login(server.endpoint, ca_of(server), "reader", SECRETS["reader"] or secret_of(server, "reader"))
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        await_so("the key is not valid", lambda: usable(keys_of(next(grants(channel)))))


def check_limits(server: AdminServer) -> None:
    """Wrong secrets delay a caller by seconds, whatever the clock says."""
    said = ""
    for _ in range(8):
        try:
            login(server.endpoint, ca_of(server), "stranger", "wrong")
        except AuthenticationRefused as refused:
            said = str(refused)
        except grpc.RpcError as refused:
            said = str(refused.details())
        if "try again in" in said:
            break
    seconds = int(said.partition("try again in ")[2].partition(" s")[0])
    assert 0 < seconds <= 60, said


def check_adapter(server: AdminServer) -> None:
    """A new start of an adapter registers, becomes active, and its former start is withdrawn."""
    adapter = Adapter(server, "a", replace=True)
    assert usable(list(adapter.registered.keys)), "the key is not valid"
    epoch = adapter.await_order("lease_granted").lease_granted.epoch
    adapter.report(ReplicaState.ACTIVE, 5, renew_epoch=epoch)
    adapter.await_order("lease_renewed")
    state = server.brokers["equities"]._state
    deadline_ns = state._starts.next_deadline_ns() or 0
    assert deadline_ns - time.monotonic_ns() < 11_000_000_000, "the former start stays announced for an hour"
    adapter.vanish()


def change(server: AdminServer) -> None:
    """Everything that notes a time which later logins and keys are compared with."""
    server.identities.disable("reader", "audit", by="operator")
    server.identities.enable("reader", by="operator")
    SECRETS["reader"] = f"secret of {time.time_ns()}"
    server.identities.rotate("reader", verifier_of(SECRETS["reader"]), 0, by="operator")
    with channel_as(server, "operator") as channel:
        admin_pb2_grpc.IdentityAdministrationStub(channel).RotateTokenKeys(
            admin_pb2.RotateTokenKeysRequest(reason="a step of the clock")
        )
        former = {key.key_id for key in server.brokers["equities"].key_ring.keys([1])}
        admin_pb2_grpc.OperationsStub(channel).RotateKeys(admin_pb2.RotateKeysRequest(feed="equities"))
    ring = server.brokers["equities"].key_ring
    assert ring.keys([1])[-1].key_id not in former
    await_so("the new key does not become valid", lambda: ring.keys([1])[-1].not_before_unix_ns == 0)


def check(server: AdminServer) -> None:
    check_reader(server)
    check_adapter(server)
    check_limits(server)


def main(folder: Path) -> None:
    """Step the clock, and do everything after each step; and start the server again at each time."""
    assert is_stepped(), "the clock of this process is not stepped"
    with running_server(folder, cluster_text=PATIENT) as server:
        check(server)
        for offset_s in (HOUR, 0, -HOUR, 0):
            change(server)
            set_clock(offset_s)
            check(server)
        change(server)
        set_clock(-HOUR)
    for offset_s in (-HOUR, HOUR, 0):
        set_clock(offset_s)
        with running_server(folder, cluster_text=PATIENT) as server:
            check(server)
            change(server)
    assert verify(folder / "state").problems == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
