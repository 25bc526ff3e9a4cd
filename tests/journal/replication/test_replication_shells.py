"""Leader and follower in one process, over TCP: the three modes, what is refused, divergence, promotion."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.journal import (
    Diverged,
    ForeignFile,
    Journal,
    JournalError,
    JournalLocked,
    NotReplicated,
    Retention,
    Tailer,
    Upkeep,
    WrongKey,
)
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication import (
    FollowerKeys,
    FollowerState,
    LeaderKeys,
    Mode,
    ReplicatedAppender,
    ReplicationFollower,
    ReplicationLeader,
    new_keys,
)
from tests.journal.replication.replication_process import LIMITS, records_of

ANY_PORT = "tcp://127.0.0.1:*"
WAIT_S = 60.0
BLOCK = BLOCK_SIZE_MIN


def _leader(folder: Path, **options: object) -> ReplicationLeader:
    return ReplicationLeader(folder, ANY_PORT, limits=LIMITS, **options)  # type: ignore[arg-type]


def _follower(folder: Path, leader: ReplicationLeader, **options: object) -> ReplicationFollower:
    return ReplicationFollower(folder, leader.endpoint, limits=LIMITS, **options)  # type: ignore[arg-type]


def _reaches(follower: ReplicationFollower, index: int) -> bool:
    return follower.wait_for(lambda status: status.next_index > index, WAIT_S)


def test_a_follower_has_the_leaders_records_at_the_leaders_indices(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK, roll_cycle="HOURLY", time_zone="Asia/Kolkata") as journal:
        journal.append(b"before")
        with _leader(tmp_path / "leader") as leader, _follower(tmp_path / "follower", leader) as follower:
            journal.append_batch([b"", b"one", b"three"])
            journal.append(os.urandom(3 * BLOCK))
            for number in range(500):
                last = journal.append(b"record %d" % number)
            assert _reaches(follower, last)
        assert records_of(tmp_path / "follower") == list(journal.records())


def test_in_the_mode_as_soon_as_possible_nothing_waits_for_followers(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader"):
        index = journal.append(b"seen by tailers, replicated or not")
        assert journal.read(index)


def test_tailers_see_only_what_a_follower_has_acknowledged(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal:
        before = journal.append(b"before replication began")
        with _leader(tmp_path / "leader", mode=Mode.SHOW_REPLICATED) as leader:
            hidden = journal.append(b"hidden")
            assert [index for index, _ in Tailer(tmp_path / "leader")] == [before]
            with _follower(tmp_path / "follower", leader):
                assert leader.wait_for_replicated(hidden, WAIT_S)
            assert [index for index, _ in Tailer(tmp_path / "leader")] == [before, hidden]
        later = journal.append(b"hidden, though no leader runs")
        assert [index for index, _ in Tailer(tmp_path / "leader")] == [before, hidden]
        with _leader(tmp_path / "leader", mode=Mode.SHOW_REPLICATED) as leader:
            assert leader.status.replicated_index == later
            with _follower(tmp_path / "follower", leader):
                assert leader.wait_for_replicated(later, WAIT_S)
        assert [index for index, _ in Tailer(tmp_path / "leader")] == [before, hidden, later]


def test_a_replicated_append_returns_after_acknowledgement_or_raises_after_the_time_out(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        appender = ReplicatedAppender(journal, leader)
        with pytest.raises(NotReplicated) as refused:
            appender.append(b"nobody follows", timeout_s=0)
        assert journal.read(refused.value.index) == b"nobody follows"
        with _follower(tmp_path / "follower", leader) as follower:
            for _ in range(50):
                index = appender.append(b"two hosts have it", timeout_s=WAIT_S)
                assert follower.folder.exists()
                assert leader.status.replicated_index > index
            first = appender.append_batch([b"a", b"b"], timeout_s=WAIT_S)
            assert leader.status.replicated_index >= first + 2
    assert records_of(tmp_path / "follower")[0] == (refused.value.index, b"nobody follows")
    assert len(records_of(tmp_path / "follower")) == 53


def test_one_follower_is_not_enough_if_two_must_acknowledge(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader", acks=2) as leader:
        appender = ReplicatedAppender(journal, leader)
        with _follower(tmp_path / "one", leader) as one:
            index = journal.append(b"held by one")
            assert _reaches(one, index)
            assert leader.wait_for_followers(1, WAIT_S)
            assert leader.status.replicated_index <= index
            with _follower(tmp_path / "two", leader, durable=True):
                assert leader.wait_for_replicated(index, WAIT_S)
                assert appender.append(b"held by both", timeout_s=WAIT_S) > index


def test_a_follower_begins_where_the_leader_still_has_records(tmp_path: Path) -> None:
    upkeep = Upkeep(Retention(files=2))
    with Journal.open(tmp_path / "leader", block_size=BLOCK, upkeep=upkeep) as journal:
        for _ in range(20):
            last = journal.append(bytes(60_000))
        journal.close()  # waits for records that retention releases
    with _leader(tmp_path / "leader") as leader, _follower(tmp_path / "follower", leader) as follower:
        assert _reaches(follower, last)
    ours = records_of(tmp_path / "leader")
    assert len(ours) < 20
    assert records_of(tmp_path / "follower") == ours


def test_no_other_appender_can_open_a_followers_journal_until_it_is_promoted(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        follower = _follower(tmp_path / "follower", leader).start()
        index = journal.append(b"from the leader")
        assert _reaches(follower, index)
        with pytest.raises(JournalLocked):
            Journal.open(tmp_path / "follower", block_size=BLOCK)
        with follower.promote() as promoted:
            own = promoted.append(b"its own")
            Journal.open(tmp_path / "follower", block_size=BLOCK).close()
            assert list(promoted.records()) == [(index, b"from the leader"), (own, b"its own")]


def test_a_former_leader_can_follow_the_promoted_one_if_it_has_no_other_records(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "old", block_size=BLOCK) as journal, _leader(tmp_path / "old") as leader:
        follower = _follower(tmp_path / "new", leader).start()
        assert _reaches(follower, journal.append(b"from the old leader"))
        promoted = follower.promote()
    with promoted, _leader(tmp_path / "new") as leader:
        last = promoted.append(b"from the new leader")
        with _follower(tmp_path / "old", leader) as refused, pytest.raises(JournalError, match="without a leader"):
            refused.wait_for(lambda _: False, WAIT_S)
        with _follower(tmp_path / "old", leader, adopt=True) as former:
            assert _reaches(former, last)
    assert records_of(tmp_path / "old") == records_of(tmp_path / "new")


def test_a_follower_with_other_records_reports_the_first_index_that_differs(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        with _follower(tmp_path / "follower", leader) as follower:
            for number in range(100):
                last = journal.append(b"common %d" % number)
            assert _reaches(follower, last)
        with Journal.open(tmp_path / "follower", block_size=BLOCK) as stray:
            differs_at = stray.append(b"appended while the follower was away")
            for _ in range(20):
                stray.append(b"and more")
        for _ in range(50):
            journal.append(b"at the leader")
        with _follower(tmp_path / "follower", leader) as follower, pytest.raises(Diverged) as diverged:
            follower.wait_for(lambda _: False, WAIT_S)
    assert diverged.value.index == differs_at == last + 1
    assert follower.status.state is FollowerState.DIVERGED
    with pytest.raises(Diverged):
        follower.check()


def test_a_follower_stores_its_leader_and_refuses_another(tmp_path: Path) -> None:
    Journal.open(tmp_path / "other", block_size=BLOCK).close()
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        with _follower(tmp_path / "follower", leader) as follower:
            assert _reaches(follower, journal.append(b"one"))
        with (
            _leader(tmp_path / "other") as other,
            _follower(tmp_path / "follower", other) as follower,
            pytest.raises(JournalError, match="belongs to leader"),
        ):
            follower.wait_for(lambda _: False, WAIT_S)
    (tmp_path / "follower" / "leader").write_text("nonsense")
    with pytest.raises(ForeignFile):
        _follower(tmp_path / "follower", leader)


def test_a_new_key_never_begins_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = iter([(b"-a", b"b"), (b"a", b"-b"), (b"a-", b"b-")])
    monkeypatch.setattr("zmq.curve_keypair", lambda: next(pairs))
    assert new_keys() == (b"a-", b"b-")


def test_only_a_follower_with_an_allowed_key_can_connect(tmp_path: Path) -> None:
    leader_public, leader_secret = new_keys()
    public, secret = new_keys()
    strange_public, strange_secret = new_keys()
    keys = LeaderKeys(leader_secret, frozenset({public}))
    with (
        Journal.open(tmp_path / "leader", block_size=BLOCK) as journal,
        _leader(tmp_path / "leader", keys=keys) as leader,
    ):
        index = journal.append(b"secret")
        for wrong in (
            FollowerKeys(leader_public, strange_public, strange_secret),  # not allowed
            FollowerKeys(strange_public, public, secret),  # expects another leader
            None,  # no keys at all
        ):
            with _follower(tmp_path / "wrong", leader, keys=wrong) as follower:
                assert follower.wait_for(lambda status: status.failure_count >= 2, WAIT_S)
                assert follower.status.reason
        assert not (tmp_path / "wrong").exists()
        assert not leader.status.followers
        with _follower(tmp_path / "right", leader, keys=FollowerKeys(leader_public, public, secret)) as follower:
            assert _reaches(follower, index)


def test_an_encrypted_journal_is_replicated_only_over_encrypted_connections_to_an_encrypted_journal(
    tmp_path: Path,
) -> None:
    leader_public, leader_secret = new_keys()
    public, secret = new_keys()
    key, other_key = bytes(range(32)), bytes(range(32, 64))
    follower_keys = FollowerKeys(leader_public, public, secret)
    with Journal.open(tmp_path / "leader", block_size=BLOCK, key=key) as journal:
        last = [journal.append_batch([b"sealed", b"records"]), journal.append(b"more")][-1]
        for lacking in (None, LeaderKeys(leader_secret)):
            with pytest.raises(ValueError, match="CURVE keys"):
                _leader(tmp_path / "leader", key=key, keys=lacking)
        with pytest.raises(WrongKey):
            _leader(tmp_path / "leader")
        with _leader(tmp_path / "leader", key=key, keys=LeaderKeys(leader_secret, frozenset({public}))) as leader:
            with (
                _follower(tmp_path / "plain", leader, keys=follower_keys) as follower,
                pytest.raises(JournalError, match="a key of its own"),
            ):
                follower.wait_for(lambda _: False, WAIT_S)
            for _ in range(2):
                with _follower(tmp_path / "sealed", leader, key=other_key, keys=follower_keys) as follower:
                    assert _reaches(follower, last)
                    last = journal.append(b"once more")
                    assert _reaches(follower, last)
        ours = list(journal.records())
    assert list(Tailer(tmp_path / "sealed", key=other_key)) == ours
    assert all(b"sealed" not in each.path.read_bytes() for each in blocks_in(tmp_path / "sealed"))


def test_a_follower_on_a_full_disk_reports_it_and_retries(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        index = journal.append(b"one")
        with _follower(tmp_path / "follower", leader, upkeep=Upkeep(free_disk_min=1 << 62)) as follower:
            assert follower.wait_for(lambda status: status.failure_count >= 2, WAIT_S)
            assert "must stay free" in follower.status.reason
        with _follower(tmp_path / "follower", leader) as follower:
            assert _reaches(follower, index)


def test_two_threads_append_and_each_waits_for_its_record(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        appender = ReplicatedAppender(journal, leader)
        with _follower(tmp_path / "follower", leader), ThreadPoolExecutor(2) as pool:
            indices = list(pool.map(lambda number: appender.append(b"%d" % number, timeout_s=WAIT_S), range(60)))
            assert leader.status.replicated_index > max(indices)
    assert len(set(indices)) == 60
    assert sorted(indices) == [index for index, _ in records_of(tmp_path / "follower")]


def test_a_recreated_follower_gets_all_records_again(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal, _leader(tmp_path / "leader") as leader:
        index = journal.append(b"one")
        for _ in range(2):
            with _follower(tmp_path / "follower", leader, durable=True) as follower:
                assert _reaches(follower, index)
            shutil.rmtree(tmp_path / "follower")


def test_only_a_journal_can_be_replicated_and_an_endpoint_must_be_free(tmp_path: Path) -> None:
    Journal.open(tmp_path / "queue", block_size=BLOCK, face="queue").close()
    with pytest.raises(JournalError, match="is a queue"):
        _leader(tmp_path / "queue")
    Journal.open(tmp_path / "leader", block_size=BLOCK).close()
    with _leader(tmp_path / "leader") as leader:
        second = ReplicationLeader(tmp_path / "leader", leader.endpoint)
        with pytest.raises(OSError, match="cannot be bound"):
            second.start()
