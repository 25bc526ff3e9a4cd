"""A leader under load, or a follower, as a process that can be killed. Prints lines; reads commands from stdin."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

from tandemfeed.journal import Journal, Tailer
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication import Limits, Mode, ReplicationFollower, ReplicationLeader
from tandemfeed.journal.replication.segments import SegmentReader
from tandemfeed.journal.replication.wire.messages import Segment

MS = 1_000_000
LIMITS = Limits(
    heartbeat_interval_ns=100 * MS, silence_ns_max=2_000 * MS, backoff_ns_min=5 * MS, backoff_ns_max=50 * MS
)
PACE_S = 0.000_5  # between appends, so that a test does not fill the disk


def records_of(folder: Path) -> list[tuple[int, bytes]]:
    """All records with their indices."""
    with Tailer(folder) as tailer:
        return list(tailer)


def segments_of(folder: Path) -> list[Segment]:
    """All segments, whether tailers see them or not."""
    reader = SegmentReader(folder)
    place = reader.place_at(0)
    assert place is not None
    return reader.read(place, 1 << 40)


def _print(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def lead(folder: Path, endpoint: str, seed: int) -> None:
    """Serve, and append until a line arrives; then print the journal's end, and serve until the input ends."""
    chance = random.Random(seed)
    finish = threading.Event()
    with (
        Journal.open(folder, roll_cycle="SECONDLY", block_size=BLOCK_SIZE_MIN) as journal,
        ReplicationLeader(folder, endpoint, mode=Mode.SHOW_REPLICATED, limits=LIMITS) as leader,
    ):
        _print("serves", leader.endpoint)
        threading.Thread(target=lambda: (sys.stdin.readline(), finish.set()), daemon=True).start()
        while not finish.wait(PACE_S):
            kind = chance.random()
            if kind < 0.5:
                journal.append(chance.randbytes(chance.randint(0, 200)))
            else:
                last = [chance.randbytes(chance.randint(0, 100)) for _ in range(chance.randint(1, 20))]
                journal.append_batch(last if kind < 0.999 else [*last, bytes(1_500_000)])
        _print("ends", journal.append(b"the last one"))
        sys.stdin.read()


def follow(folder: Path, endpoint: str, durable: bool) -> None:
    """Follow, and print the position whenever it changes."""
    with ReplicationFollower(folder, endpoint, durable=durable, limits=LIMITS) as follower:
        printed = 0
        while follower.wait_for(lambda status: status.next_index > printed, 60):  # noqa: B023 - the call ends here
            printed = follower.status.next_index
            _print("at", printed)


if __name__ == "__main__":
    role, folder_text, endpoint_text, number = sys.argv[1:]
    if role == "lead":
        lead(Path(folder_text), endpoint_text, int(number))
    else:
        follow(Path(folder_text), endpoint_text, number == "1")
