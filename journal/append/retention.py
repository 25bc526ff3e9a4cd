"""Which files a journal may release: limits of what it keeps, and readers that still need a file.

Whole files are released, oldest first, never the newest, and none that a named tailer has not read or a follower has
not acknowledged, unless that is wanted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.journal.check.journal_files import JournalFiles, paths_of
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, BlockName
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import CONTROL_NAME, RELEASED
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.runtime.durable import remove_file


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of what a journal keeps. Whole files are released, oldest first, never the newest. None: no limit.

    Args:
        age_s: maximum seconds since a file was last appended to.
        size: maximum bytes of all files.
        files: maximum number of files.
    """

    age_s: float | None = None
    size: int | None = None
    files: int | None = None

    def __post_init__(self) -> None:
        if self.files is not None and self.files < 1:
            raise ValueError(f"files is {self.files}; it must be at least 1, because the newest file is always kept")

    def surplus(self, blocks: list[BlockName], now_s: float) -> list[BlockName]:
        """The blocks to release.

        Args:
            blocks: all blocks, oldest first. Those that were released since they were listed are ignored.
        """
        stats = {}
        for each in blocks:
            with contextlib.suppress(FileNotFoundError):
                stats[each] = each.path.stat()
        blocks = list(stats)
        ages = [now_s - status.st_mtime for status in stats.values()]
        sizes = [status.st_size for status in stats.values()]
        drop = 0
        while drop < len(blocks) - 1 and (
            (self.files is not None and len(blocks) - drop > self.files)
            or (self.size is not None and sum(sizes[drop:]) > self.size)
            or (self.age_s is not None and ages[drop] > self.age_s)
        ):
            drop += 1
        return blocks[:drop]


KEEP_ALL = Retention()


@dataclass(frozen=True, slots=True)
class Pruning:
    """The files that can be released, oldest first, and the reason why the next one cannot."""

    files: list[BlockName]
    kept_for: dict[str, int | None]  # readers that still need the next file, and their positions
    is_busy: bool = False  # the next file is being compressed
    released_until: int = 0  # the index after their last record, if there are named tailers; otherwise 0

    def readers_text(self) -> str:
        """The readers that need the next file, and where they are."""
        places = (
            f"{name}, which {'has no position yet' if at is None else f'is at {format_index(at)}'}"
            for name, at in self.kept_for.items()
        )
        return "; ".join(places)


def release(folder: Path, pruning: Pruning, on_released: Callable[[Path], object]) -> None:
    """Delete the files, oldest first; each is durably gone before the next.

    Raises:
        FlushFailed: names of new files may be lost too.
    """
    if pruning.released_until:
        with Control(folder / CONTROL_NAME, writable=True) as control:
            control.set_word(RELEASED, max(control.word(RELEASED), pruning.released_until))
    for name in pruning.files:
        for path in paths_of(name):
            remove_file(path)
        on_released(name.path)


def plan_pruning(
    files: JournalFiles, retention: Retention, now_s: float, names: Sequence[BlockName], *, even_unread: bool = False
) -> Pruning:
    """The files beyond a retention; never the newest.

    Args:
        names: of all blocks, oldest first.
        even_unread: also files that named tailers have not read or followers have not acknowledged.

    Raises:
        BlockCorrupt, ForeignFile, NewerFormat: a file is unreadable, so it is unknown whether readers need it.
    """
    positions = {f"named tailer {name}": at for name, at in files.named_positions().items()}
    if not even_unread and (visible := files.words().visible):
        positions["replication"] = visible
    free: list[BlockName] = []
    until = 0
    for name in retention.surplus(list(names), now_s):
        if any(files.folder.glob(f".{name.path.name}{COMPRESSED_SUFFIX}.*")):
            return Pruning(free, {}, is_busy=True, released_until=until)  # its compressed form would appear later
        summary = files.summary(name) if positions else None
        if summary is not None:
            waiting = {each: at for each, at in positions.items() if at is None or at < summary.end_index}
            if waiting and not even_unread:
                return Pruning(free, waiting, released_until=until)
            until = summary.end_index
        free.append(name)
    return Pruning(free, {}, released_until=until)
