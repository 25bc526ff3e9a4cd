"""Blocks of a queue: recycled once they have no active items, spread over several paths, bounded in number."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tandemfeed.journal.persistent_queue.blocks.spares as spares_module
from tandemfeed.journal import DiskFull
from tandemfeed.journal.check.journal_files import JournalFiles
from tandemfeed.journal.check.verification import Verification
from tandemfeed.journal.format.access import PRIVATE
from tandemfeed.journal.format.block import Block, blocks_in
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.persistent_queue import Cancelled, PathMissing, PersistentQueue, QueueFull, Recycled
from tandemfeed.journal.persistent_queue.blocks.segments import items_body, segment

BLOCK = BLOCK_SIZE_MIN
ITEM = bytes(10_000)
PER_BLOCK = 18


def put_blocks(queue: PersistentQueue, count: int) -> list[int]:
    return [queue.put(ITEM) for _ in range(count * PER_BLOCK)]


def put_forever(queue: PersistentQueue, ids: list[int]) -> None:
    while True:
        ids.append(queue.put(ITEM))


def drain(queue: PersistentQueue) -> list[int]:
    served = []
    while (entry := queue.get()) is not None:
        served.append(entry[0])
        queue.done(entry[0])
    return served


def test_a_queue_that_is_emptied_as_it_is_filled_needs_only_a_few_blocks(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK, checkpoint_interval_items=PER_BLOCK) as queue:
        for _ in range(30):
            ids = put_blocks(queue, 1)
            assert drain(queue) == ids
            queue.checkpoint()
            assert len(list(tmp_path.glob("*.tfj"))) <= 3
        assert queue.statistics().recycled_count >= 10
        assert queue.cancel(0) == Recycled(0)
        ids = put_blocks(queue, 3)
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert drain(queue) == ids


def test_a_block_in_the_middle_is_recycled_while_older_ones_wait(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        ids = put_blocks(queue, 5)
        for item_id in ids[1:]:
            assert queue.cancel(item_id) == Cancelled(item_id)
        queue.checkpoint()
        assert len(queue.block_active_counts()) == 2
        later = put_blocks(queue, 3)
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert drain(queue) == [ids[0], *later]


def test_old_items_of_a_recycled_block_never_reappear_although_their_bytes_remain(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path / "queue", block_size=BLOCK, checkpoint_interval_s=60) as queue:
        for _ in range(4):
            put_blocks(queue, 1)
            drain(queue)
            queue.checkpoint()
        last = queue.put(b"the only one")
        shutil.copytree(tmp_path / "queue", tmp_path / "copy")
    with PersistentQueue.open(tmp_path / "copy", block_size=BLOCK) as queue:
        assert queue.get() == (last, b"the only one")
        assert queue.get() is None


def test_a_block_that_was_named_but_never_used_is_removed(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        item_id = queue.put(b"item")
    spare = spares_module.make_spare(tmp_path / ".x.spare", BLOCK, flushed=True)
    spare.path.rename(tmp_path / "000000000-000001.tfj")
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert queue.get() == (item_id, b"item")
        assert len(blocks_in(tmp_path)) == 1


def test_blocks_go_to_the_paths_in_turn_and_are_all_found_again(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    with PersistentQueue.open(folders[0], more_paths=folders[1:], block_size=BLOCK) as queue:
        ids = put_blocks(queue, 9)
    assert [len(blocks_in(folder)) >= 3 for folder in folders] == [True] * 3
    with PersistentQueue.open(folders[0], more_paths=folders[:0:-1], block_size=BLOCK) as queue:
        assert drain(queue) == ids


def test_a_block_made_too_late_for_its_turn_is_used_for_the_next(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    spares = spares_module.Spares(folders, BLOCK, PRIVATE)
    assert spares.take_ready(1) is None  # the caller makes the block that it needs, just before the keeper does
    spares.prepare(1)
    spare = spares.take_ready(2)
    assert spare is not None
    assert spare.path.parent == folders[2]


def test_a_missing_path_is_named_in_the_error_and_paths_can_be_added(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    with PersistentQueue.open(one, more_paths=[two], block_size=BLOCK) as queue:
        ids = put_blocks(queue, 2)
    with pytest.raises(PathMissing, match="two"):
        PersistentQueue.open(one, block_size=BLOCK)
    with pytest.raises(PathMissing, match="two"):  # leaves an empty mount point
        PersistentQueue.open(one, more_paths=[three], block_size=BLOCK)
    assert not three.exists()
    two.rename(tmp_path / "moved")
    with PersistentQueue.open(one, more_paths=[tmp_path / "moved", three], block_size=BLOCK) as queue:
        ids += put_blocks(queue, 3)
        assert drain(queue) == ids
    assert blocks_in(three)


def test_a_put_is_refused_while_all_blocks_are_active_and_succeeds_after_deliveries(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK, blocks_max=3, checkpoint_interval_s=60) as queue:
        ids: list[int] = []
        with pytest.raises(QueueFull, match="3 blocks"):
            put_forever(queue, ids)
        assert queue.pending_count == len(ids) >= 3 * (PER_BLOCK - 1)
        assert drain(queue) == ids
        ids = put_blocks(queue, 2)
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert drain(queue) == ids


def test_on_a_full_disk_puts_are_refused_while_deliveries_continue_until_puts_succeed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, is_full = spares_module.make_spare, True

    def make_spare(path: Path, block_size: int, **options: Any) -> Block:
        if is_full:
            raise DiskFull(f"{path}: no room")
        return make(path, block_size, **options)

    queue = PersistentQueue.open(tmp_path, block_size=BLOCK)
    monkeypatch.setattr(spares_module, "make_spare", make_spare)
    ids: list[int] = []
    with pytest.raises(DiskFull):
        put_forever(queue, ids)
    with pytest.raises(DiskFull):
        queue.put_many([ITEM] * 3)
    for item_id in ids[:3]:
        assert queue.get() == (item_id, ITEM)
        queue.done(item_id, durable=True)
    assert queue.cancel(ids[3]) == Cancelled(ids[3])
    is_full = False
    ids = [*ids[4:], queue.put(ITEM)]
    queue.close()
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert drain(queue) == ids


def test_an_item_larger_than_a_block_gets_a_larger_block(tmp_path: Path) -> None:
    large = bytes(range(256)) * 4_096
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        ids = [queue.put(item) for item in (b"before", large, b"after")]
        tiny = queue.put_many([b""] * 50_000)
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert [queue.get() for _ in range(3)] == list(zip(ids, (b"before", large, b"after"), strict=True))
        assert queue.pending_count == len(tiny)
        assert queue.cancel(tiny[-1]) == Cancelled(tiny[-1])
        assert queue.cancel_all() == len(tiny) - 1


def test_verify_has_no_findings_in_a_queue_with_notes_and_padding(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        put_blocks(queue, 3)
        queue.put_many([b"", b"tiny", b""])
        drain(queue)
        queue.checkpoint()
        put_blocks(queue, 2)
    assert list(Verification(JournalFiles(tmp_path)).findings()) == []


@pytest.mark.parametrize(
    ("items", "stored"),
    [
        ([b"one"], "23000000988f5054070000000000000000002a36fe9c971701000000030000006f6e65" + "00" * 13),
        ([b"ab", b"cd"], "4000000048ce74ef070000000000000000002a36fe9c9717020000000200000061626364" + "00" * 36),
        (
            [b"a", b"bc", b"", b"x" * 41],
            "800000001aa0241d070000000000000000002a36fe9c97170400008000000000"
            "0100000003000000030000002c000000616263" + "78" * 41 + "00" * 44,
        ),
    ],
)
def test_a_segment_of_items_has_the_golden_bytes(items: list[bytes], stored: str) -> None:
    written = segment(0x9ABC_DEF0, 7, 1_700_000_000_000_000_000, *items_body(items))
    assert written.hex() == stored
