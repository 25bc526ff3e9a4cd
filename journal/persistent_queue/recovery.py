"""Recovery, at every opening: rolls forward from the newest checkpoint, replays state changes, and finds the log's end.

At a checkpoint all state areas are on the disk with all earlier changes. So only what follows the newest checkpoint is
read and replayed, and the checkpoint interval bounds the time. In older blocks only the state areas are counted.
Replaying a note twice, or over states that reached the disk early, changes nothing.

Flushes nothing: the caller's checkpoint flushes the blocks that were repaired, before it records how far they count.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import numpy as np

from tandemfeed.journal.compiled.kernels import (
    AT_OFFSET,
    AT_SEQUENCE,
    AT_STATUS,
    AT_TIME,
    BROKEN,
    ENDED,
    new_state,
    roll_forward,
)
from tandemfeed.journal.compiled.reading import find_after_damage
from tandemfeed.journal.errors import BlockCorrupt, ForeignFile
from tandemfeed.journal.format.block import Block, blocks_in
from tandemfeed.journal.format.layout import DATA_OFFSET, HEADER, INDEX_SIZE, SEGMENT, SEGMENT_SIZE
from tandemfeed.journal.persistent_queue.blocks.catalogue import Catalogue, QueueBlock
from tandemfeed.journal.persistent_queue.blocks.log import Position, end_block
from tandemfeed.journal.persistent_queue.blocks.segments import changes_in
from tandemfeed.journal.persistent_queue.blocks.state_bits import count_settled, next_note
from tandemfeed.journal.persistent_queue.items.item_state import LOST_BITS

LOG = logging.getLogger("tandemfeed.journal")


class Stretch(NamedTuple):
    """Consecutive whole segments, from offset to before end."""

    block: Block
    offset: int
    end: int


@dataclass(slots=True)
class Walk:
    """The result of rolling forward through a block."""

    end: int
    next_id: int
    last_at_ns: int
    is_ended: bool
    stretches: list[Stretch] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)  # ids from, to before


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of recovery: where the log continues. The catalogue is filled."""

    position: Position | None
    is_ended: bool
    next_ordinal: int
    replayed_count: int  # state changes


def recover(folders: Sequence[Path], catalogue: Catalogue, queue_id: UUID) -> Recovered:
    """Find every block, repair what a crash left, and fill the catalogue.

    Raises:
        ForeignFile, NewerFormat, BlockCorrupt.
    """
    found = _find(folders, queue_id)
    anchor = max((place for place, (_, has_checkpoint) in enumerate(found) if has_checkpoint), default=0)
    stretches: list[Stretch] = []
    lost: list[tuple[int, int]] = []
    position, is_ended = None, False
    for place, (block, _) in enumerate(found):
        mapped = Block(block.path, writable=True, journal_id=queue_id)
        if mapped.was_truncated:
            LOG.warning("%s was truncated; its remaining items are pending again", block.path)
        if place < anchor and (tail := mapped.tail()) is not None:
            block.end_id = tail[2]
        else:
            walk = _walk(mapped, from_checkpoint=place >= anchor and not mapped.was_truncated)
            block.end_id = walk.next_id
            stretches += walk.stretches
            lost += walk.lost
            if place + 1 < len(found) and not walk.is_ended:
                _disarm(mapped, walk)
                end_block(mapped, walk.end, walk.next_id, walk.last_at_ns, found[place + 1][0].ordinal)
                catalogue.mark_changed(block, mapped)
            elif place + 1 == len(found):
                position = Position(mapped, walk.end, walk.next_id, walk.last_at_ns)
                is_ended = walk.is_ended
                if not is_ended:
                    _disarm(mapped, walk)
        if block.end_id > block.first_id:
            states = mapped.address + mapped.header.state_offset
            block.settled_count = int(count_settled(states, block.end_id - block.first_id))
        catalogue.add(block, mapped)
    for first_id, end_id in lost:
        _apply(catalogue, first_id, end_id, LOST_BITS)
    replayed_count = sum(_replay(catalogue, stretch) for stretch in stretches)
    return Recovered(position, is_ended, found[-1][0].ordinal + 1 if found else 0, replayed_count)


def _find(folders: Sequence[Path], queue_id: UUID) -> list[tuple[QueueBlock, bool]]:
    """All blocks, oldest first, without their ends, and whether each has a checkpoint.

    Removes a block that was named but never begun.
    """
    found = []
    for folder in folders:
        for name in blocks_in(folder):
            if _is_spare(name.path):
                LOG.warning("%s: removed an empty block that its process had not begun", name.path)
                name.path.unlink()
                continue
            mapped = Block(name.path, writable=True, journal_id=queue_id)
            header = mapped.header
            if header.ordinal != name.ordinal:
                raise ForeignFile(f"{name.path}: its header says block {header.ordinal:#x}; restore the file's name")
            block = QueueBlock(name.ordinal, name.path, header.first_sequence, header.first_sequence)
            found.append((block, mapped.checkpoint().generation > 0))
    found.sort(key=lambda each: each[0].ordinal)
    for (before, _), (after, _) in pairwise(found):
        if before.ordinal == after.ordinal or before.first_id > after.first_id:
            raise BlockCorrupt(f"{before.path} and {after.path} contradict each other: one is a copy; move it away")
    return found


def _is_spare(path: Path) -> bool:
    """Whether the file is still a spare: its name reached the disk, but its header did not."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    return len(head) == HEADER.size and not any(HEADER.unpack(head)[7])


def _walk(block: Block, *, from_checkpoint: bool) -> Walk:
    """Roll forward to the end of the whole segments, skipping damage."""
    state = new_state()
    state[AT_OFFSET], state[AT_SEQUENCE] = DATA_OFFSET, block.header.first_sequence
    if from_checkpoint:
        checkpoint = block.checkpoint()
        state[AT_OFFSET], state[AT_SEQUENCE] = checkpoint.end, checkpoint.next_sequence
        state[AT_TIME] = checkpoint.last_at_ns
    stretches, lost = [], []
    while True:
        offset = int(state[AT_OFFSET])
        roll_forward(block.address, state)
        end, sequence = int(state[AT_OFFSET]), int(state[AT_SEQUENCE])
        stretches.append(Stretch(block, offset, end))
        data_end = block.header.data_end
        if state[AT_STATUS] != BROKEN or not find_after_damage(block.address, end, data_end, sequence, state):
            break
        next_id = int(state[AT_SEQUENCE])
        LOG.warning("%s: damage at offset %d; lost items %d to %d", block.path, end, sequence, next_id - 1)
        lost.append((sequence, next_id))
    return Walk(end, sequence, int(state[AT_TIME]), bool(state[AT_STATUS] == ENDED), stretches, lost)


def _disarm(block: Block, walk: Walk) -> None:
    """Clear segments after the end: pages that reached the disk without those before them must not look valid."""
    state, offset, view = new_state(), walk.end - 8, block.view
    while find_after_damage(block.address, offset, block.header.data_end, 0, state):
        offset = int(state[AT_OFFSET])
        view[offset : offset + 4] = bytes(4)
    view[walk.end : walk.end + 4] = bytes(4)
    index_offset = block.header.index_offset
    entries = block.array[index_offset : index_offset + INDEX_SIZE].view(np.uint64).reshape(-1, 3)
    entries[entries[:, 2] >= walk.end] = 0
    # Needed only if damage destroyed durable items: their ids are assigned again.
    states, place = block.state, walk.next_id - block.header.first_sequence
    states[place // 4] &= (1 << 2 * (place % 4)) - 1
    if states[place // 4 + 1 :].any():
        states[place // 4 + 1 :] = 0


def _replay(catalogue: Catalogue, stretch: Stretch) -> int:
    """Apply the notes of a stretch; return the number of changes in them."""
    block, offset, count = stretch.block, stretch.offset, 0
    while (offset := int(next_note(block.address, offset, stretch.end))) >= 0:
        length = SEGMENT.unpack_from(block.view, offset)[0]
        for change in changes_in(bytes(block.view[offset + SEGMENT_SIZE : offset + length])):
            _apply(catalogue, *change)
            count += 1
        offset += (length + 7) & -8
    return count


def _apply(catalogue: Catalogue, first_id: int, end_id: int, bits: int) -> None:
    for block in catalogue.from_id(first_id):
        if block.first_id >= end_id:
            break
        catalogue.settle(block, first_id, end_id, bits)
