"""What a follower acknowledged survives a power failure of its host, also after failed flushes and kills.

On a disk that keeps only what was flushed.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, Tailer, Upkeep
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication import (
    FollowerState,
    ReplicatedAppender,
    ReplicationFollower,
    ReplicationLeader,
)
from tandemfeed.journal.replication.follower.follower_journal import LEADER_NAME
from tests.dying_process import die_after
from tests.journal.replication.replication_process import LIMITS, records_of
from tests.losing_disk import FailsAt, Fault, LosingDisk, losing_disk

ANY_PORT = "tcp://127.0.0.1:*"
WAIT_S = 60.0
BLOCK = BLOCK_SIZE_MIN
LONG = bytes(50_000)  # four fit into a block


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LosingDisk]:
    """Of the follower's host."""
    (tmp_path / "disk").mkdir()
    with losing_disk(tmp_path / "disk", tmp_path / "kept") as disk:
        yield disk


@pytest.fixture
def journal(tmp_path: Path, disk: LosingDisk) -> Iterator[Journal]:
    """The leader's; its own disk never fails."""
    with Journal.open(tmp_path / "leader", block_size=BLOCK) as journal:
        yield journal


@pytest.fixture
def leader(journal: Journal) -> Iterator[ReplicationLeader]:
    with ReplicationLeader(journal.folder, ANY_PORT, limits=LIMITS) as leader:
        yield leader


def follower_on(disk: LosingDisk, leader: ReplicationLeader, **options: object) -> ReplicationFollower:
    options = {"durable": True, "limits": LIMITS} | options
    return ReplicationFollower(disk.root / "follower", leader.endpoint, **options)  # type: ignore[arg-type]


def on_followers_disk(disk: LosingDisk, fault: Fault) -> Fault:
    def there(operation: str, path: Path) -> None:
        if disk.root in path.parents:
            fault(operation, path)

    return there


def after_power_failure(disk: LosingDisk) -> list[tuple[int, bytes]]:
    """The follower's records that are left if its power fails now, once an appender has opened the journal."""
    image = disk.image(disk.root.parent / f"image-{len(list(disk.root.parent.iterdir()))}")
    Journal.open(image / "follower", block_size=BLOCK).close()
    return records_of(image / "follower")


def test_every_record_that_a_durable_follower_acknowledged_is_on_its_disk(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader
) -> None:
    with follower_on(disk, leader) as follower:
        appender = ReplicatedAppender(journal, leader)
        for number in range(12):
            appender.append(b"%d" % number + LONG, timeout_s=WAIT_S)
            assert after_power_failure(disk) == list(journal.records())
        assert len(blocks_in(follower.folder)) > 2


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("operation", ["flush", "flush_folder"])
def test_a_follower_whose_flush_failed_writes_again_before_it_acknowledges(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader, operation: str, times: int
) -> None:
    appender = ReplicatedAppender(journal, leader)
    with follower_on(disk, leader) as follower:
        for number in range(3):
            appender.append(b"%d" % number + LONG, timeout_s=WAIT_S)
        fault = FailsAt(1, times, operations=(operation,))
        disk.fault = on_followers_disk(disk, fault)
        for number in range(3, 8):
            appender.append(b"%d" % number + LONG, timeout_s=WAIT_S)
            assert after_power_failure(disk) == list(journal.records())
        assert fault.failed == times
        assert follower.status.failure_count >= 1
        assert follower.wait_for(lambda status: status.state is FollowerState.FOLLOWING and not status.reason, WAIT_S)
    assert not [path for path in disk.root.rglob("*.tf?") if disk._lost(path)]


def test_a_follower_acknowledges_nothing_while_its_disk_refuses_and_everything_afterwards(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader
) -> None:
    with follower_on(disk, leader) as follower:
        first = ReplicatedAppender(journal, leader).append(b"first" + LONG, timeout_s=WAIT_S)
        disk.fault = on_followers_disk(disk, FailsAt(1, None))
        last = journal.append(b"second" + LONG)
        assert follower.wait_for(lambda status: status.failure_count >= 4, WAIT_S)
        assert "refuses" in follower.status.reason or "refused" in follower.status.reason
        assert leader.status.replicated_index == first + 1
        disk.fault = lambda operation, path: None
        assert leader.wait_for_replicated(last, WAIT_S)
        assert after_power_failure(disk) == list(journal.records())


@pytest.mark.parametrize("is_flushing", [True, False])
@pytest.mark.parametrize("records", [1, 8])
def test_what_a_killed_follower_had_not_flushed_is_on_its_disk_before_its_position_counts(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader, records: int, is_flushing: bool
) -> None:
    leader.stop()  # no thread may run while this process forks
    endpoint = leader.endpoint
    first = journal.append(b"first" + LONG)
    for number in range(records):
        last = journal.append(b"%d" % number + LONG)

    def follow_and_die() -> None:
        with ReplicationLeader(journal.folder, endpoint, limits=LIMITS) as own, follower_on(disk, own) as follower:
            sync = follower._journal.sync

            def sync_or_die() -> None:
                if not is_flushing and follower._core.next_index > first:
                    os._exit(0)
                sync()

            follower._journal.sync = sync_or_die  # type: ignore[method-assign]
            disk.fault = on_followers_disk(
                disk, lambda operation, path: os._exit(0) if follower._core.next_index > first else None
            )
            follower.wait_for(lambda status: False, WAIT_S)

    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(follow_and_die)
    with (
        ReplicationLeader(journal.folder, endpoint, limits=LIMITS) as again,
        follower_on(disk, again),
    ):
        acknowledged = again._wait_for(lambda status: any(at > last for at in status.followers.values()), WAIT_S)
        assert acknowledged  # by its position, or later
        assert after_power_failure(disk) == list(journal.records())


@pytest.mark.parametrize("durable", [True, False])
def test_everything_is_on_the_disk_when_a_follower_is_promoted(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader, durable: bool
) -> None:
    last = journal.append_batch([b"%d" % number + LONG for number in range(2)]) + 1
    follower = follower_on(disk, leader, durable=durable).start()
    assert follower.wait_for(lambda status: status.next_index > last, WAIT_S)
    with follower.promote():
        assert after_power_failure(disk) == list(journal.records())
        image = disk.image(disk.root.parent / "image")
        assert not (image / "follower" / LEADER_NAME).exists()


@pytest.mark.parametrize("operation", ["flush", "flush_folder", "remove"])
def test_a_promotion_that_the_disk_refuses_can_be_tried_again(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader, operation: str
) -> None:
    last = journal.append(b"one" + LONG)
    follower = follower_on(disk, leader).start()
    assert leader.wait_for_replicated(last, WAIT_S)
    follower.stop()
    disk.fault = on_followers_disk(disk, FailsAt(1, operations=(operation,)))
    with pytest.raises(Exception, match=r"refuse|Input/output|flushed"):
        follower.promote()
    with follower.promote() as promoted:
        assert list(promoted.records()) == list(journal.records())
        assert after_power_failure(disk) == list(journal.records())


def test_the_leaders_name_is_on_the_disk_before_the_journal(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader
) -> None:
    index = journal.append(b"one")
    names: list[set[str]] = []

    def fault(operation: str, path: Path) -> None:
        if operation == "flush" and path.name.startswith(".journal.tfc"):
            names.append({each.name for each in (disk.image(disk.root.parent / "image") / "follower").iterdir()})

    disk.fault = fault
    with follower_on(disk, leader):
        assert leader.wait_for_replicated(index, WAIT_S)
    assert names == [{LEADER_NAME}]


def test_the_name_of_a_leader_that_a_killed_follower_had_not_flushed_is_flushed_by_the_next(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader
) -> None:
    (disk.root / "follower").mkdir()
    with follower_on(disk, leader):
        assert leader.wait_for_replicated(journal.append(b"one"), WAIT_S)
    text = (disk.root / "follower" / LEADER_NAME).read_text()
    with losing_disk(disk.root, disk.root.parent / "kept-again") as again:
        (again.root / "follower" / LEADER_NAME).unlink()
        again.flush_folder(again.root / "follower")
        (again.root / "follower" / LEADER_NAME).write_text(text)  # its name is not flushed
        with follower_on(again, leader):
            assert leader.wait_for_replicated(journal.append(b"two"), WAIT_S)
        assert (again.image(again.root.parent / "image") / "follower" / LEADER_NAME).exists()


def test_a_followers_files_are_for_its_user_or_also_for_a_group(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader
) -> None:
    modes: Callable[[Path], set[int]] = lambda folder: {  # noqa: E731
        stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir() if each.is_file()
    }
    with follower_on(disk, leader) as follower:
        assert leader.wait_for_replicated(journal.append(b"one"), WAIT_S)
        assert modes(follower.folder) == {0o600}
        assert stat.S_IMODE(follower.folder.stat().st_mode) == 0o700
    shared = ReplicationFollower(disk.root / "shared", leader.endpoint, limits=LIMITS, group=os.getgid())
    with shared as follower:
        assert follower.wait_for(lambda status: status.state is FollowerState.FOLLOWING, WAIT_S)
        assert modes(follower.folder) == {0o660}
        assert stat.S_IMODE(follower.folder.stat().st_mode) == 0o2770


@pytest.mark.parametrize(("durable", "compress"), [(True, False), (False, False), (True, True)])
def test_a_follower_that_lost_some_of_its_last_pages_requests_everything_from_the_first_lost_record_on(
    disk: LosingDisk, journal: Journal, leader: ReplicationLeader, durable: bool, compress: bool
) -> None:
    """A power failure can leave a record without those before it; the follower's position must not claim these."""
    first = journal.append_batch([b"%d" % number + LONG for number in range(2)]) + 1
    with follower_on(disk, leader, upkeep=Upkeep(compress=compress)) as follower:
        assert leader.wait_for_replicated(first, WAIT_S)
        sync = follower._journal.sync
        follower._journal.sync = lambda: None  # type: ignore[method-assign]  # as if the power failed before it
        for number in range(30):
            last = journal.append_batch([b"%d %d" % (number, each) + bytes(9_000) for each in range(4)]) + 3
        assert follower.wait_for(lambda status: status.next_index > last, WAIT_S)
        images = [disk.image(disk.root.parent / f"image-{seed}", random.Random(seed)) for seed in range(12)]
        follower._journal.sync = sync  # type: ignore[method-assign]
    whole, gaps = list(journal.records()), 0
    for image in images:
        copy = image.with_name(f"{image.name}-as-a-journal")
        shutil.copytree(image / "follower", copy)
        Journal.open(copy, block_size=BLOCK).close()
        with Tailer(copy) as tailer:
            list(tailer)
            gaps += tailer.lost_count > 0
        again = ReplicationFollower(image / "follower", leader.endpoint, durable=durable, limits=LIMITS)
        with again:
            assert again.wait_for(lambda status: status.next_index > last, WAIT_S)
        assert records_of(image / "follower") == whole
    assert gaps > 0
