"""The real server over TLS: who has access, what it sends to whom, which adapter becomes active."""

from __future__ import annotations

import json
import queue
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.admin_server.feed.descriptions import AWAY
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.admin_server.services import adapter_registry
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.notices.adapter import DeathNoticeSender, GrantNoticeReceiver
from tandemfeed.transport.calls.notices.layout import GrantNotice
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import WAIT_S, Adapter, started_when_allowed
from tests.admin_server.cluster_files import (
    CLUSTER,
    POLICY,
    ca_of,
    channel_as,
    running_server,
    secret_of,
    write_settings,
)
from tests.admin_server.subscriber_by_hand import RefusedRequest, grants, keys_of
from tests.transport.calls.notices.test_notices import free_endpoint, received


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


def code_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> grpc.StatusCode:
    return error.value.code()


def test_a_wrong_secret_and_an_unknown_identity_are_refused_identically(server: AdminServer) -> None:
    with pytest.raises(AuthenticationRefused) as wrong:
        login(server.endpoint, ca_of(server), "reader", "not the secret")
    with pytest.raises(AuthenticationRefused) as unknown:
        login(server.endpoint, ca_of(server), "unknown", "not the secret")
    assert str(wrong.value).partition(":")[2] == str(unknown.value).partition(":")[2]


def test_a_call_without_a_valid_token_is_unauthenticated(server: AdminServer) -> None:
    key = Ed25519PrivateKey.generate()
    public_key = key.public_key().public_bytes_raw()
    expired = Login(*server.authentication.issue_token(server.policy["reader"], public_key, -5), key)
    for bearer in (None, lambda _server: "nonsense", expired.bearer):
        with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, bearer) as channel:
            stub = admin_pb2_grpc.StreamAdministrationStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ListFeeds(admin_pb2.ListFeedsRequest())
            assert code_of(refused) is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as refused_stream:
                list(grants(channel))
            assert code_of(refused_stream) is grpc.StatusCode.UNAUTHENTICATED


def test_a_role_cannot_call_another_roles_service(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel, pytest.raises(grpc.RpcError, match="the role admin") as refused:
        admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest())
    assert code_of(refused) is grpc.StatusCode.PERMISSION_DENIED


def test_the_refusal_of_a_topic_names_it(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        refusal = r"'equities\.trades' in feed 'equities' does not exist or is not"
        with pytest.raises(RefusedRequest, match=refusal) as refused:
            next(grants(channel, "equities.ticks", "equities.trades"))
        assert refused.value.kind == admin_pb2.REFUSAL_KIND_NOT_GRANTED
    with channel_as(server, "stranger") as channel:
        stub = admin_pb2_grpc.StreamAdministrationStub(channel)
        assert not stub.ListFeeds(admin_pb2.ListFeedsRequest()).feeds
    audit = [json.loads(line) for line in (server.folder.path / "audit.jsonl").read_text().splitlines()]
    assert any(line["event"] == "subscription refused" and line["topic"] == "equities.trades" for line in audit)


def test_a_subscriber_receives_addresses_model_keys_and_later_changes(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        updates = grants(channel)
        first = next(updates)
        assert [stream.group for stream in first.feed.source_streams] == ["239.192.1.1:5001", "239.192.1.2:5002"]
        assert b"messageSchema" in first.documents[0].content
        assert first.documents[0].version == first.channels[0].message_model
        assert [len(key.key) for key in keys_of(first)] == [32]
        adapter = Adapter(server, "a")
        adapter.await_order("lease_granted")
        update = next(updates)
        while update.active.adapter_id != 1 or not update.adapters:
            update = next(updates)
        assert dict(update.adapters[0].groups) == {1: "239.192.2.1:5011"}
        adapter.vanish()
        while update.adapters[0].replica_state != "away":
            update = next(updates)
        assert update.adapters[0].groups[1] == "239.192.2.1:5011"


def test_the_first_adapter_of_a_feed_becomes_active_and_renews(server: AdminServer) -> None:
    adapter = Adapter(server, "a")
    epoch = adapter.await_order("lease_granted").lease_granted.epoch
    adapter.report(ReplicaState.ACTIVE, renew_epoch=epoch, report_id=77)
    renewed = adapter.await_order("lease_renewed").lease_renewed
    assert (renewed.epoch, renewed.report_id) == (epoch, 77)
    adapter.report(ReplicaState.ACTIVE, renew_epoch=epoch + 1, report_id=78)
    assert adapter.await_order("lease_lost").lease_lost.epoch == epoch + 1
    adapter.vanish()


def test_adapters_and_clients_receive_the_same_keys(server: AdminServer) -> None:
    adapter = Adapter(server, "a")
    changed = adapter.await_order("cluster_changed").cluster_changed
    with channel_as(server, "reader") as channel:
        grant = next(grants(channel))
    keys = [(key.key_id, key.channel_id, key.key) for key in keys_of(grant)]
    assert [channel_id for _, channel_id, _ in keys] == [1]
    for announced in (adapter.registered.keys, changed.keys):
        assert [(key.key_id, key.channel_id, key.key) for key in announced] == keys
    adapter.vanish()


def test_a_synchronised_backup_is_granted_the_next_epoch_when_the_actives_stream_ends(server: AdminServer) -> None:
    active = Adapter(server, "a")
    epoch = active.await_order("lease_granted").lease_granted.epoch
    backup = Adapter(server, "b")
    backup.report(ReplicaState.SYNCHRONIZED, 50)
    active.vanish()
    assert backup.await_order("lease_granted").lease_granted.epoch > epoch
    backup.vanish()


def test_a_death_notice_ends_an_adapter_whose_stream_is_still_open(server: AdminServer) -> None:
    active = Adapter(server, "a")
    epoch = active.await_order("lease_granted").lease_granted.epoch
    backup = Adapter(server, "b")
    backup.report(ReplicaState.SYNCHRONIZED, 50)
    incarnation = active.registered.self.incarnation
    sender = DeathNoticeSender(server.endpoint)
    sender.send(backup.registered.notice_key, incarnation)  # with another adapter's key: ignored
    sender.send(active.registered.notice_key, incarnation)
    sender.send(active.registered.notice_key, incarnation)
    sender.close()
    assert backup.await_order("lease_granted").lease_granted.epoch == epoch + 1
    assert active.ended.wait(WAIT_S)
    assert not backup.ended.is_set()
    backup.vanish()


def test_a_grant_is_sent_as_a_notice_too(server: AdminServer) -> None:
    active = Adapter(server, "a")
    epoch = active.await_order("lease_granted").lease_granted.epoch
    endpoint = free_endpoint()
    receiver = GrantNoticeReceiver(endpoint)
    backup = Adapter(server, "b", rpc_endpoint=endpoint)
    incarnation = backup.registered.self.incarnation
    receiver.follow(server.endpoint, incarnation, backup.registered.notice_key)
    backup.report(ReplicaState.SYNCHRONIZED, 50)
    active.vanish()
    ordered = backup.await_order("lease_granted").lease_granted
    (noticed,) = received(receiver)  # it is there before the order
    assert ordered.epoch == epoch + 1
    assert noticed == GrantNotice(
        incarnation, ordered.epoch, ordered.ttl_ns, ordered.report_id, epoch_proof=ordered.epoch_proof
    )
    receiver.close()
    backup.vanish()


def test_who_has_left_is_announced_once_and_after_the_lease_is_granted(server: AdminServer) -> None:
    active, backup = Adapter(server, "a"), Adapter(server, "b")
    active.await_order("lease_granted")
    backup.report(ReplicaState.SYNCHRONIZED, 50)
    while state_of(backup, backup.await_order("cluster_changed")) != ReplicaState.SYNCHRONIZED.value:
        pass
    active.vanish()
    epoch = backup.await_order("lease_granted").lease_granted.epoch
    order = backup.orders.get(timeout=WAIT_S)
    assert (order.cluster_changed.active_adapter_id, order.cluster_changed.epoch) == (backup.adapter_id, epoch)
    assert state_of(active, order) == AWAY
    backup.report(ReplicaState.SYNCHRONIZED, 50)
    assert backup.orders.get(timeout=WAIT_S).WhichOneof("order") == "report_heard"
    backup.vanish()


def state_of(adapter: Adapter, order: admin_pb2.AdapterOrder) -> str:
    """An adapter's state, as an order announces it."""
    (found,) = (each for each in order.cluster_changed.adapters if each.adapter_id == adapter.adapter_id)
    return found.replica_state


def test_a_registration_returns_the_protocol_settings_of_the_feed(tmp_path: Path) -> None:
    chosen = 'publish = "acked"\non_silence = "hold"\nfail_policy = "below_threshold"\nfail_threshold = 0.25\n'
    for words, expected in (
        ("", ("async", "proceed", "lowest", 0.0)),
        (chosen, ("acked", "hold", "below_threshold", 0.25)),
    ):
        text = CLUSTER.replace("lease_ttl_ms = 300\n", words)
        with running_server(tmp_path, cluster_text=text) as server:
            adapter = started_when_allowed(server, "a")
            protocol = adapter.registered.protocol
            assert (protocol.publish, protocol.on_silence, protocol.fail_policy, protocol.fail_threshold) == expected
            adapter.vanish()


def test_an_adapter_of_one_feed_has_no_rights_on_another(tmp_path: Path) -> None:
    bonds = CLUSTER.replace("feed_id = 1", "feed_id = 2").replace("equities", "bonds").replace("adapter-b", "adapter-c")
    with running_server(tmp_path, cluster_text=CLUSTER + _moved(bonds)) as server:
        for identity, feed in (("adapter-a", "bonds"), ("adapter-b", "equities"), ("source", "bonds")):
            with channel_as(server, identity) as channel:
                stub = admin_pb2_grpc.AdapterRegistryStub(channel)
                assert stub.DescribeFeed(admin_pb2.DescribeFeedRequest(feed=feed)).name == feed
        with channel_as(server, "adapter-b") as channel:
            stub = admin_pb2_grpc.AdapterRegistryStub(channel)
            for feed in ("bonds", "unknown"):  # the same refusal for both
                with pytest.raises(grpc.RpcError, match=f"no feed '{feed}'; available to you: equities") as refused:
                    stub.DescribeFeed(admin_pb2.DescribeFeedRequest(feed=feed))
                assert code_of(refused) is grpc.StatusCode.NOT_FOUND
        session = login(server.endpoint, ca_of(server), "adapter-b", secret_of(server, "adapter-b"))
        verifier = TokenVerifier(ADMIN_SERVER, server.token_keys.accepted())
        caller = verifier.verify(session.bearer(ADMIN_SERVER))
        assert caller.is_adapter_of("equities")
        assert not caller.is_adapter_of("bonds")
    assert '"call refused"' in (tmp_path / "state" / "audit.jsonl").read_text()


def _moved(cluster: str) -> str:
    """The same cluster with other groups and ports."""
    return cluster.replace("239.192.", "239.193.").replace(":50", ":60")


def test_every_reported_state_is_acknowledged(server: AdminServer) -> None:
    adapter = Adapter(server, "a")
    for report_id in (7, 8):
        adapter.report(report_id=report_id)
        while adapter.await_order("report_heard").report_heard.report_id != report_id:
            pass
    adapter.vanish()


def test_the_streams_of_an_adapters_identity_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_registry, "OPEN_STREAMS_OF_ONE_MAX", 5)
    silent: queue.SimpleQueue[None] = queue.SimpleQueue()
    with running_server(tmp_path) as server, channel_as(server, "adapter-a") as channel:
        stub = admin_pb2_grpc.AdapterRegistryStub(channel)
        guards = [stub.Guard.future(iter(silent.get, None)) for _ in range(5)]

        def refusal() -> str:
            with pytest.raises(grpc.RpcError) as refused:
                next(stub.Attend(iter([admin_pb2.AdapterReport(incarnation=99)])))
            return str(refused.value.details())

        while "is not registered" in (last := refusal()):
            pass  # until all of them have arrived
        assert last == "adapter-a has 5 such calls open, which is the limit; end one first"
        other = Adapter(server, "b")
        other.await_order("cluster_changed")
        other.vanish()
        for guard in guards:
            guard.cancel()
            silent.put(None)


def test_an_adapter_can_register_only_as_itself(server: AdminServer) -> None:
    with channel_as(server, "adapter-a") as channel:
        stub = admin_pb2_grpc.AdapterRegistryStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Register(admin_pb2.RegisterRequest(feed="equities", adapter="b"))
        assert code_of(refused) is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Register(admin_pb2.RegisterRequest(feed="bonds", adapter="a"))
        assert code_of(unknown) is grpc.StatusCode.NOT_FOUND


def test_incarnations_never_repeat_and_epochs_only_grow_across_a_restart(tmp_path: Path) -> None:
    incarnations, epochs, keys = [], [], []
    for _ in range(3):
        with running_server(tmp_path) as server:
            adapter = started_when_allowed(server, "a")
            incarnations.append(adapter.registered.self.incarnation)
            keys.append([key.key for key in adapter.registered.keys])
            assert [len(key) for key in keys[-1]] == [32]
            epochs.append(adapter.await_order("lease_granted").lease_granted.epoch)
            adapter.vanish()
    assert incarnations == sorted(set(incarnations))
    assert epochs == sorted(set(epochs))
    assert keys[0] == keys[1] == keys[2]


def test_secrets_at_rest_are_salted_verifiers_in_a_private_folder(server: AdminServer) -> None:
    path = server.folder.path
    assert path.stat().st_mode & 0o777 == 0o700
    for name in (
        "crl.pem",
        "cluster.key",
        "ca.key",
        "server.key",
        "secrets/reader.secret",
        "leases.sqlite",
        "audit.jsonl",
    ):
        assert (path / name).stat().st_mode & 0o777 == 0o600
    assert secret_of(server, "reader") not in (path / "leases.sqlite").read_bytes().decode("latin1")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("feed_id = 1", "feed_id = 0", ", line 3: feed[0].feed_id is 0; it must be an integer from 1 to 65535"),
        (
            'group = "239.192.1.1:5001"',
            'group = "10.0.0.1:5001"',
            ", line 17: feed[0].source_stream[0].group is invalid: group '10.0.0.1:5001': 10.0.0.1 is not a multicast",
        ),
        (
            "source_stream_ids = [1, 2]",
            "source_stream_ids = [1]",
            ", line 10: feed[0].channel must have each source stream in source_stream_ids of exactly one channel; fou",
        ),
        (
            'group = "239.192.1.2:5002"',
            'group = "239.192.1.2:5001"',
            ', line 21: feed[0].source_stream[1].group shares a port with "239.192.1.1:5001": "239.192.1.2:5001"; each',
        ),
        (
            "239.192.2.2:5012",
            "239.192.2.2:5001",
            ', line 31: feed[0].adapter[1].groups.1 shares a port with "239.192.1.1:5001": "239.192.2.2:5001"; each',
        ),
        (
            "lease_ttl_ms = 300",
            "lease_ttl = 300",
            ", line 8: feed[0].lease_ttl is not a known key; did you mean lease_",
        ),
        (
            "adapter_id = 2",
            "adapter_id = 1",
            ", line 28: feed[0].adapter[1].adapter_id is 1, like that of adapter[0]; each must be different",
        ),
        ("message-model.xml", "no-such.xml", ", line 6: feed[0].message_model cannot be read: "),
        ('"message-model.xml"', "7", ", line 6: feed[0].message_model is 7; it must be the path of an SBE message sch"),
        (
            "session = 20261121",
            "",
            ", line 2: feed[0].session is missing; it must be an integer from 19700101 to 99991",
        ),
        (
            "channel_id = 1",
            "channel_id = 1\ncolour = 2",
            ", line 12: feed[0].channel[0].colour is not a known key; the",
        ),
        (
            "groups = { 1 =",
            "groups = { x =",
            ', line 26: feed[0].adapter[0].groups is {"x":"239.192.2.1:5011"}; it must be a table of channel_id = ',
        ),
        (
            "groups = { 1 =",
            "groups = { 2 =",
            ", line 26: feed[0].adapter[0].groups must have one group for each channel; it has groups for [2],",
        ),
        ("[1, 2]", "[1, [2]]", ", line 13: feed[0].channel[0].source_stream_ids[1] is [2]; it must be an integer"),
        (
            '"equities.ticks"',
            '"equities..ticks"',
            ', line 12: feed[0].channel[0].topic is "equities..ticks"; it must be a topic: words of letters, digits,',
        ),
        ("lease_ttl_ms = 300", 'publish = "sync"', ', line 8: feed[0].publish is "sync"; it must be one of "acked", '),
        (
            "lease_ttl_ms = 300",
            "fail_threshold = 0.5",
            ', line 8: feed[0].fail_threshold is set, but fail_policy is "l',
        ),
        (
            "lease_ttl_ms = 300",
            'fail_policy = "below_threshold"',
            ', line 2: feed[0].fail_threshold is missing; fail_policy = "below_threshold" needs a number from 0 to 1',
        ),
        (
            "lease_ttl_ms = 300",
            'fail_policy = "below_threshold"\nfail_threshold = 30',
            ", line 9: feed[0].fail_threshold is 30; it must be a number from 0 to 1",
        ),
        (
            'group = "239.192.1.2:5002"',
            'group = "239.192.1.2:5002"\ncontributions = "127.0.0.1:7412"',
            ", line 13: feed[0].channel[0].source_stream_ids is [1, 2]; a channel with a contributed source",
        ),
        (
            'group = "239.192.1.2:5002"',
            'group = "239.192.1.2:5002"\ncontributions = "7412"',
            ', line 22: feed[0].source_stream[1].contributions is "7412"; it must be an address HOST:PORT',
        ),
        (
            'group = "239.192.1.2:5002"',
            'group = "239.192.1.2:5002"\ncontributions = ["127.0.0.1:7412", "127.0.0.1:7412"]',
            ", line 22: feed[0].source_stream[1].contributions is "
            '["127.0.0.1:7412","127.0.0.1:7412"]; expected an address',
        ),
        (
            '"127.0.0.1:7411"',
            '"7411"',
            ', line 7: feed[0].source_replay_endpoint is "7411"; it must be an address HOST:PORT',
        ),
        (
            'name = "a"',
            'name = "a b"',
            ', line 24: feed[0].adapter[0].name is "a b"; it must be a name of at most 64 letter',
        ),
        (
            'name = "a"',
            'name = "a"\nunicast = "0.0.0.0:7450"',
            ", line 25: feed[0].adapter[0].unicast is invalid: '0.0.0.0:7450': 0.0.0.0 is not the address of one inte",
        ),
        (
            'identity = "adapter-a"',
            """identity = "adapter-a"
unicast = "10.0.0.5:7450"
groups = { 1 = "239.192.2.1:5011" }
[[feed.adapter]]
adapter_id = 9
name = "c"
identity = "adapter-a"
unicast = "10.0.0.5:7450\"""",
            ', line 32: feed[0].adapter[1].unicast is also the address of adapter equities/a: "10.0.0.5:7450"; each',
        ),
        (
            "lease_ttl_ms = 300",
            'publish = "acked"\nidle_without_subscribers = true',
            ', line 9: feed[0].idle_without_subscribers is true, but publish is "acked": the packets of backups are th',
        ),
    ],
)
def test_an_error_in_the_cluster_file_names_line_and_key(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in CLUSTER
    cluster, _ = write_settings(tmp_path, cluster=CLUSTER.replace(old, new, 1))
    with pytest.raises(SettingsError, match=re.escape(f"{cluster}{error}")):
        load_cluster(cluster)


def test_a_message_model_that_is_not_an_sbe_schema_is_refused_before_an_adapter_registers(tmp_path: Path) -> None:
    cluster, _ = write_settings(tmp_path)
    model = tmp_path / "message-model.xml"
    model.write_text(model.read_text().replace("littleEndian", "bigEndian"))
    with pytest.raises(SettingsError) as refused:
        load_cluster(cluster)
    assert str(refused.value) == (
        f"{cluster}, line 6: feed[0].message_model is not a usable message model: "
        f"{model}:1: byteOrder: only littleEndian output is written"
    )


def test_the_server_does_not_start_if_the_policy_lacks_an_adapters_identity(tmp_path: Path) -> None:
    cluster, policy = write_settings(tmp_path, policy=POLICY.replace("[identity.adapter-b]", "[identity.someone]"))
    with pytest.raises(
        SettingsError, match=r"line 30: feed\[0\]\.adapter\[1\]\.identity is .adapter-b., which is not in"
    ):
        AdminServer(cluster, policy, tmp_path / "state", "127.0.0.1:0")


def test_a_settings_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no\.toml cannot be read: no such file or directory"):
        load_cluster(tmp_path / "no.toml")
