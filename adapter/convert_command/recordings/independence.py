"""Which inputs are recordings of their own, so that they can be converted side by side.

Gaps, duplicates and the state of tables pass from an input to the one that continues it. Captures with a stream in
common continue each other: what is missing in one may be in the other. So the captures of two lines, or of consecutive
hours, are one recording; those of different sessions are not. A fragment of a DBN file, which has no metadata,
continues the input before it. State is by instrument or order, and no look at files can show that none passes: the
user says so.

The streams of captures are looked for in their beginnings. `require_own_streams` refuses what shows only when all have
been converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tandemfeed.adapter.conversion.formats.files.dbn import DBN_MAGIC
from tandemfeed.adapter.convert_command.captures.capture_reading import first_time
from tandemfeed.adapter.convert_command.captures.line_groups import LineGroups, Stream, look_at
from tandemfeed.adapter.convert_command.captures.protocols import PROTOCOLS
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input

ADVICE = "leave out --jobs"


class Recording(NamedTuple):
    """Inputs that continue each other.

    Attributes:
        line_groups: of captures, from a look at all of them.
        session: trading day, YYYYMMDD; 0: not known.
    """

    paths: tuple[Path, ...]
    line_groups: LineGroups | None = None
    session: int = 0


class InputsContinueEachOther(Exception):
    """Inputs cannot be converted side by side; the text says why."""


def recordings_in(given: Input, reader: str) -> list[Recording]:
    """The recordings in these inputs: captures in the order of their times, other files in the given order.

    Raises:
        InputsContinueEachOther: all inputs are one recording.
        FormatError, OSError: an input cannot be read.
    """
    if reader in PROTOCOLS:
        found, why = _captures(given, reader)
    elif reader == "dbn":
        found, why = _dbn_files(given)
    else:
        found, why = [Recording((path,)) for path in given.paths], ""
    if len(found) == 1 and len(given.paths) > 1:
        raise InputsContinueEachOther(f"{why}, so the inputs continue each other; {ADVICE}")
    return found


def _captures(given: Input, reader: str) -> tuple[list[Recording], str]:
    look = look_at(given.paths, PROTOCOLS[reader](given.source_format))
    parts = groups_of(look.streams)
    found = [Recording(tuple(given.paths[number] for number in numbers), look.lines) for numbers in parts]
    found.sort(key=lambda each: min(first_time(path) for path in each.paths))
    why = f"the {len(given.paths)} captures have streams in common"
    return found, why


def groups_of(streams: Sequence[set[Stream]]) -> list[list[int]]:
    """The numbers of files that have streams in common, directly or through others; in the order of their first."""
    found: list[tuple[list[int], set[Stream]]] = []
    for number, each in enumerate(streams):
        joined, seen = [number], set(each)
        others = [one for one in found if not seen.isdisjoint(one[1])]
        for one in others:
            joined, seen = one[0] + joined, seen | one[1]
            found.remove(one)
        found.append((sorted(joined), seen))
    return sorted(numbers for numbers, _ in found)


def _dbn_files(given: Input) -> tuple[list[Recording], str]:
    found: list[tuple[Path, ...]] = []
    for path in given.paths:
        with DecompressedFile(path) as file:
            is_fragment = file.read(len(DBN_MAGIC)) != DBN_MAGIC
        if is_fragment and found:
            found[-1] = (*found[-1], path)
        else:
            found.append((path,))
    return [Recording(paths) for paths in found], f"{given.paths[-1]} has no metadata"


def with_sessions(recordings: Sequence[Recording], paths: Sequence[Path], sessions: Sequence[int]) -> list[Recording]:
    """Recordings with their sessions.

    Args:
        sessions: one for each path, or one for all.

    Raises:
        InputsContinueEachOther: files of one recording are of different sessions.
    """
    by_path = dict(zip(paths, sessions if len(sessions) > 1 else [sessions[0]] * len(paths), strict=True))
    for each in recordings:
        if len({by_path[path] for path in each.paths}) > 1:
            names = ", ".join(path.name for path in each.paths)
            raise InputsContinueEachOther(f"{names} belong together, but --session gives them different days")
    return [each._replace(session=by_path[each.paths[0]]) for each in recordings]


def require_own_streams(recordings: Sequence[Recording], findings: Sequence[Findings]) -> None:
    """Check that no stream is in two recordings, after they have been converted.

    Args:
        findings: of each recording.

    Raises:
        InputsContinueEachOther: one is.
    """
    owners: dict[str, str] = {}
    for recording, found in zip(recordings, findings, strict=True):
        name = recording.paths[0].name
        for stream in {each.stream for each in found.streams}:
            other = owners.setdefault(stream, name)
            if other != name:
                both = f"{other} and {name} both have the stream {stream}"
                raise InputsContinueEachOther(f"{both}, which is not in their beginnings; {ADVICE}")
