"""A grant is recorded once for each login and change, and what is remembered of that is bounded."""

from __future__ import annotations

from tandemfeed.admin_server.audit.recorded_grants import Asked, RecordedGrants

ALICE = Asked("alice", 1, "resale.ticks")
FIRST, SECOND = ("resale", "alice", "127.0.0.1:7001"), ("resale", "alice", "127.0.0.1:7002")


def test_a_grant_is_recorded_again_when_it_changes_and_for_each_login_and_topic() -> None:
    recorded = RecordedGrants()
    for asked in (
        ALICE,
        ALICE._replace(issued_unix_ns=2),
        ALICE._replace(topic="resale.bars"),
        ALICE._replace(identity="bob"),
    ):
        assert not recorded.has(asked, FIRST)
        recorded.note(asked, FIRST)
        assert recorded.has(asked, FIRST)
    assert not recorded.has(ALICE, SECOND)
    recorded.note(ALICE, SECOND)
    assert recorded.has(ALICE, SECOND)
    assert not recorded.has(ALICE, FIRST)  # back at the first gateway: a change again


def test_the_oldest_grants_are_forgotten() -> None:
    recorded = RecordedGrants(count_max=2)
    logins = [ALICE._replace(issued_unix_ns=at) for at in range(3)]
    for asked in (logins[0], logins[1], logins[0], logins[2]):
        recorded.note(asked, FIRST)
    assert [recorded.has(each, FIRST) for each in logins] == [True, False, True]
