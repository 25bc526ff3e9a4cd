"""A right that was lost is forgotten only after its keys were replaced, and not if it was given again meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tandemfeed.admin_server.feed.keys.given_rights import GivenRights, contribution_to
from tandemfeed.admin_server.policy.rules import NOTHING, WHOLE, Action, Extent
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.server import AdminServer
from tests.admin_server.cluster_files import running_server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "leases.sqlite")
    yield opened
    opened.close()


def nobody_may(_identity: str, _channel_id: int) -> bool:
    return False


def test_what_was_lost_is_forgotten_in_the_records_too(store: Store) -> None:
    rights = GivenRights(store, 1)
    rights.note("reader", [1, contribution_to(1)])
    rights.note("other", [1])
    lost = rights.lost(lambda identity, _channel_id: identity == "other")
    assert lost.identities == {1: {"reader"}, contribution_to(1): {"reader"}}
    rights.forget(lost)
    assert store.granted(1) == {1: {"other"}}
    assert rights.lost(nobody_may).identities == {1: {"other"}}


def test_a_right_that_is_given_again_while_keys_are_replaced_is_not_forgotten(store: Store) -> None:
    rights = GivenRights(store, 1)
    rights.note("reader", [1, 2])
    lost = rights.lost(nobody_may)
    rights.note("reader", [1])  # with the former key, or with the new one: it counts as given
    rights.forget(lost)
    assert store.granted(1) == {1: {"reader"}}
    assert rights.lost(nobody_may).identities == {1: {"reader"}}
    rights.forget(rights.lost(nobody_may))
    assert not rights.lost(nobody_may)


def test_a_right_that_is_given_again_while_the_policy_is_asked_is_not_forgotten(store: Store) -> None:
    rights = GivenRights(store, 1)
    rights.note("reader", [1])

    def is_entitled(identity: str, channel_id: int) -> bool:
        rights.note(identity, [channel_id])
        return False

    rights.forget(rights.lost(is_entitled))
    assert rights.lost(nobody_may).identities == {1: {"reader"}}


class Policy:
    """A policy that grants the reader everything, or nothing."""

    def __init__(self) -> None:
        self.grants = False

    def extent(self, identity: str, topic: str) -> Extent:
        return WHOLE if self.grants else NOTHING

    def allows(self, identity: str, action: Action, topics: Iterable[str]) -> bool:
        return self.grants

    def roles_of(self, identity: str) -> frozenset[str]:
        return frozenset({"client"} if self.grants else ())


def key_ids(server: AdminServer) -> set[int]:
    return {key.key_id for key in server.brokers["equities"].key_ring.keys([1])}


def test_whoever_got_a_right_back_while_its_keys_were_replaced_loses_the_new_ones_with_it(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        broker, policy = server.brokers["equities"], Policy()
        broker.rights.note("reader", [1])
        replace = broker.key_ring.replace

        def replace_and_give_again(channel_ids: Iterable[int]) -> None:
            replace(channel_ids)
            broker.rights.note("reader", [1])

        broker.key_ring.replace = replace_and_give_again  # type: ignore[method-assign]
        broker.end_lost_rights(policy)
        broker.key_ring.replace = replace  # type: ignore[method-assign]
        known = key_ids(server)
        policy.grants = True
        broker.end_lost_rights(policy)
        assert key_ids(server) == known
        policy.grants = False
        broker.end_lost_rights(policy)
        assert key_ids(server) - known, "the reader may have those keys, so they are replaced"
