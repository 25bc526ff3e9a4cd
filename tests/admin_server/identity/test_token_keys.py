"""The key that signs tokens rotates, on a schedule and by command; tokens of the former one serve until they expire."""

from __future__ import annotations

import json
import queue
import secrets
import time
from pathlib import Path

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.admin_server.identity import token_keys
from tandemfeed.admin_server.identity.authentication import TOKEN_VALID_S
from tandemfeed.admin_server.identity.token_keys import DAY_NS, KEY_COUNT_MAX, TokenKeySet
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import TokenRefused, TokenVerifier, binding, sign_token
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter, started_when_allowed
from tests.admin_server.cluster_files import ca_of, channel_as, running_server, secret_of
from tests.admin_server.identity.logins import run
from tests.admin_server.subscriber_by_hand import SubscriberCall, grants, keys_of
from tests.transport.calls.announced_keys import announced

SECOND_NS = 1_000_000_000
TOKEN_VALID_NS = TOKEN_VALID_S * SECOND_NS
MOMENTS = st.integers(0, 2 * TOKEN_VALID_NS)
KEY = Ed25519PrivateKey.generate()


@given(st.lists(MOMENTS, max_size=20).map(sorted), MOMENTS)
def test_what_a_key_signs_is_accepted_until_it_expires(rotations: list[int], signed_at: int) -> None:
    last = signed_at + TOKEN_VALID_NS
    keys = TokenKeySet.of_one(secrets.token_bytes(32), 0)
    for at in (each for each in rotations if each <= signed_at):
        keys = keys.rotated(secrets.token_bytes(32), at)
    signing = keys.signing_at(signed_at)
    for at in (each for each in rotations if signed_at < each <= last):
        keys = keys.rotated(secrets.token_bytes(32), at)
    assert signing.private_key in {each.private_key for each in keys.accepted_at(last)}
    assert [each.accepted_until_unix_ns == 0 for each in keys.keys] == [False] * (len(keys.keys) - 1) + [True]


def test_a_former_key_is_dropped_when_what_it_signed_has_expired() -> None:
    keys = TokenKeySet.of_one(secrets.token_bytes(32), 0).rotated(secrets.token_bytes(32), DAY_NS)
    former, fresh = keys.keys
    assert keys.signing_at(DAY_NS) == former, "adapters and sources must have a key before it signs"
    assert keys.signing_at(fresh.signs_from_unix_ns) == fresh
    assert keys.accepted_at(DAY_NS) == (former, fresh)
    assert keys.accepted_at(former.accepted_until_unix_ns) == (fresh,)


def test_a_verifier_drops_a_key_at_its_end() -> None:
    bearer = login_with(KEY).bearer(ADMIN_SERVER)
    verifier = TokenVerifier(ADMIN_SERVER, announced(KEY, until_unix_ns=time.time_ns() + 3_600 * SECOND_NS))
    caller = verifier.verify(bearer)
    verifier.require_valid(caller)
    verifier.trust(announced(KEY, until_unix_ns=time.time_ns() - 1))
    for check in (lambda: verifier.verify(bearer), lambda: verifier.require_valid(caller)):
        with pytest.raises(TokenRefused, match="a key that is not accepted"):
            check()


def login_with(key: Ed25519PrivateKey) -> Login:
    """A login whose token this key signed."""
    own = Ed25519PrivateKey.generate()
    claims = {"sub": "ann", "exp": int(time.time()) + 600} | binding(own.public_key().public_bytes_raw())
    return Login(sign_token(claims, key), 0, own)


def key_of(session: Login) -> str:
    """The id of the key that signed a login's token."""
    return str(jwt.get_unverified_header(session.token)["kid"])


def session_of(server: AdminServer, identity: str = "reader") -> Login:
    return login(server.endpoint, ca_of(server), identity, secret_of(server, identity))


def is_accepted(server: AdminServer, session: Login) -> bool:
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        try:
            admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest())
        except grpc.RpcError as refused:
            return refused.code() is not grpc.StatusCode.UNAUTHENTICATED
        return True


def drained(orders: queue.SimpleQueue[admin_pb2.AdapterOrder]) -> list[admin_pb2.AdapterOrder]:
    """All orders that have arrived; the stream has ended."""
    return [orders.get() for _ in range(orders.qsize())]


def events(server: AdminServer, event: str) -> list[dict[str, object]]:
    rows = map(json.loads, (server.folder.path / "audit.jsonl").read_text().splitlines())
    return [row for row in rows if row["event"] == event]


def test_a_rotation_needs_no_restart_and_ends_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token_keys, "LEAD_NS", 0)
    with running_server(tmp_path) as server:
        before = session_of(server)
        adapter = Adapter(server, "a")
        assert len(adapter.registered.token_keys) == 1
        assert run(server, "keys", "rotate-tokens", "--reason", "yearly") == 0
        after = session_of(server)
        assert key_of(after) != key_of(before)
        assert is_accepted(server, before)
        assert is_accepted(server, after)
        at_adapter = TokenVerifier(adapter_server("equities", "a"))
        while not at_adapter.accepts(after.token):
            at_adapter.trust(adapter.await_order("cluster_changed").cluster_changed.token_keys)
        assert at_adapter.accepts(before.token)
        with channel_as(server, "source") as channel:
            report = admin_pb2.SourceReport(feed="equities", process_nonce=bytes(16))
            reported = admin_pb2_grpc.AdapterRegistryStub(channel).ReportSource(report)
        at_source = TokenVerifier(source_gateway("equities"), reported.token_keys)
        assert at_source.accepts(before.token)
        assert at_source.accepts(after.token)
        capsys.readouterr()
        assert run(server, "keys", "list") == 0
        page = capsys.readouterr().out
        assert key_of(before) in page
        assert key_of(after) in page
        (row,) = events(server, "token key rotated")
        assert (row["by"], row["reason"], row["key"]) == ("operator", "yearly", key_of(after))
        adapter.vanish()


def test_a_key_that_has_signed_for_its_time_is_replaced_by_the_next_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "LEAD_NS", 0)
    with running_server(tmp_path, token_key_days=7) as server:
        first = session_of(server)
        server.token_keys._now_unix_ns = lambda: time.time_ns() + 7 * DAY_NS - 60 * SECOND_NS
        assert key_of(session_of(server)) == key_of(first)
        server.token_keys._now_unix_ns = lambda: time.time_ns() + 7 * DAY_NS
        assert key_of(session_of(server)) != key_of(first)
        assert is_accepted(server, first)
        (row,) = events(server, "token key rotated")
        assert row["by"] == "schedule"


def test_too_many_rotations_within_an_hour_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(tmp_path) as server:
        for _ in range(KEY_COUNT_MAX - 1):
            server.token_keys.rotate("test")
        assert run(server, "keys", "rotate-tokens") != 0
        assert "drop the former keys with --now" in capsys.readouterr().err


def test_dropping_the_former_keys_ends_every_call_and_token_and_replaces_every_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path) as server:
        forged, own = (
            session_of(server),
            TokenSource(server.endpoint, ca_of(server), "reader", secret_of(server, "reader")),
        )
        own(ADMIN_SERVER)
        adapter = started_when_allowed(server, "a")
        epoch = adapter.await_order("lease_granted").lease_granted.epoch
        adapter.report(ReplicaState.ACTIVE, renew_epoch=epoch)
        with channel_as(server, "reader") as channel:
            subscription = SubscriberCall(channel)
            (stolen,) = keys_of(subscription.subscribe())
            assert run(server, "keys", "rotate-tokens", "--now", "--yes") != 0
            assert "a reason is required" in capsys.readouterr().err
            assert is_accepted(server, forged)
            assert run(server, "keys", "rotate-tokens", "--now", "--reason", "laptop stolen", "--yes") == 0
            list(subscription.call)  # it ends
        assert adapter.ended.wait(20)
        heard = [order.cluster_changed.token_keys for order in drained(adapter.orders)]
        assert all(keys == adapter.registered.token_keys for keys in heard if keys), "peers' promises still count"
        assert not is_accepted(server, forged)
        server_keys = TokenVerifier(ADMIN_SERVER, server.token_keys.accepted())
        own.adopt_trust(admin_pb2.SourceReported(token_keys=server.token_keys.accepted()), server_keys)
        assert server_keys.verify(own(ADMIN_SERVER)).identity == "reader", "it has logged in again by itself"
        back = Adapter(server, "a", resumes=adapter)
        assert not TokenVerifier(adapter_server("equities", "a"), back.registered.token_keys).accepts(forged.token)
        assert back.start.salt == adapter.start.salt, "it resumes its start, and its stream continues"
        with channel_as(server, "reader") as channel:
            fresh = keys_of(next(grants(channel)))[-1]
        assert fresh.key_id != stolen.key_id
        (row,) = events(server, "token keys dropped")
        assert (row["by"], row["reason"]) == ("operator", "laptop stolen")
        back.vanish()


def test_a_server_that_is_killed_after_it_dropped_the_keys_replaces_the_others_when_it_starts(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        forged = session_of(server)
        known = {key.key_id for key in server.brokers["equities"].key_ring.keys([1])}
        server.token_keys.drop_former("operator", "laptop stolen")  # and nothing after it
    for _ in range(2):
        with running_server(tmp_path) as server:
            keys = {key.key_id for key in server.brokers["equities"].key_ring.keys([1])}
            assert len(keys - known) == 1, "replaced once"
            assert not server.token_keys.distrusts
            assert not is_accepted(server, forged)
            again = session_of(server)
            assert is_accepted(server, again)
