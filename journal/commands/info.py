"""`info`, `history`: shows a journal's settings and state, and the latencies in its records' histories."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tandemfeed.journal.check.journal_files import FileSummary, JournalFiles
from tandemfeed.journal.commands.options import add_range, add_subcommand, count, read_key, require_journal
from tandemfeed.journal.commands.presentation import counted, size_text, table, time_text, to_json
from tandemfeed.journal.commands.reading import Range, forward, lost_status, to_begin
from tandemfeed.journal.commands.streams import Interruption, Streams
from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.format.layout import IS_CLEAN
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.journal.tailer import Tailer
from tandemfeed.journal.typed_records.history import LatencyStatistics, MalformedHistory, split_history

HEX_BYTES_DEFAULT = 4_096


def add_to(subcommands: Any) -> None:
    """Add the sub-commands and their options."""
    info = add_subcommand(
        subcommands,
        "info",
        "show settings, files, appenders, named tailers and disk space",
        "Show a journal's settings, files, appenders, named tailers and disk space. Needs no key.",
        ["info DIR", "info DIR --json"],
        run_info,
    )
    info.add_argument("--json", action="store_true", help="print a JSON object")
    history = add_subcommand(
        subcommands,
        "history",
        "show the latencies of the hops that records passed",
        "Show latency statistics per hop, between hops, and end to end, from records that carry a history.",
        ["history DIR", "history DIR --from-time 2026-11-21T08:00:00Z --json"],
        run_history,
    )
    add_range(history)
    history.add_argument("--max", type=count, metavar="N", help="stop after N records")
    history.add_argument("--json", action="store_true", help="print a JSON object")


# --- info -------------------------------------------------------------------------------------------------------------


def run_info(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0; 1 if a file is missing or cannot be read, or a flush has failed."""
    require_journal(arguments.folder)
    with JournalFiles(arguments.folder) as files:
        unreadable: dict[str, str] = {}
        summaries = []
        for name in files.names():
            try:
                summary = files.summary(name)
            except JournalError as reason:
                unreadable[name.path.name] = str(reason)
                continue
            if summary is not None:
                summaries.append(summary)
        found = _info(files, summaries, unreadable)
    if arguments.json:
        streams.say(to_json(found))
    else:
        for line in _info_lines(found):
            streams.say(line)
    return 1 if unreadable or found["missing"] or found["has_failed"] else 0


def _info(files: JournalFiles, summaries: list[FileSummary], unreadable: dict[str, str]) -> dict[str, Any]:
    words, holder, settings = files.words(), files.lock_holder(), files.settings
    disk = os.statvfs(files.folder)
    filled = [each for each in summaries if each.record_count]
    return {
        "journal": str(files.folder),
        "id": str(files.control.journal_id),
        "face": settings.face,
        "roll_cycle": settings.roll_cycle,
        "time_zone": settings.time_zone,
        "epoch_offset_s": settings.epoch_offset_s,
        "block_size": settings.block_size,
        "is_encrypted": bool(settings.key_check),
        "records": sum(each.record_count for each in summaries),
        "size": sum(each.size for each in summaries),
        "first_index": format_index(filled[0].first_index) if filled else None,
        "last_index": format_index(filled[-1].end_index - 1) if filled else None,
        "first_at": time_text(filled[0].first_at_ns) if filled else None,
        "last_at": time_text(words.last_at_ns) if filled else None,
        "files": [_file_info(files, each) for each in summaries],
        "unreadable": unreadable,
        "missing": [] if unreadable else files.missing_files(summaries),
        "has_failed": files.has_failed,
        "appenders": [asdict(each) for each in files.appenders()],
        "lock": None if holder is None else asdict(holder),
        "was_closed_in_order": files.control.word(IS_CLEAN) == 1,
        "tailers": [
            {
                "name": name,
                "position": None if position is None else format_index(position),
                "behind": _unread_count(summaries, position),
            }
            for name, position in files.named_positions().items()
        ],
        "replicated_until": format_index(words.visible) if words.visible else None,
        "not_replicated": _unread_count(summaries, words.visible) if words.visible else None,
        "disk_free": disk.f_bavail * disk.f_frsize,
        "disk_size": disk.f_blocks * disk.f_frsize,
    }


def _file_info(files: JournalFiles, summary: FileSummary) -> dict[str, Any]:
    has_records = bool(summary.record_count)
    return {
        "name": summary.name.path.name,
        "cycle": files.label(summary.name),
        "size": summary.size,
        "records": summary.record_count,
        "first_index": format_index(summary.first_index),
        "last_index": format_index(summary.end_index - 1) if has_records else None,
        "first_at": time_text(summary.first_at_ns) if has_records else None,
        "last_at": time_text(summary.last_at_ns) if has_records else None,
        "is_ended": summary.is_ended,
        "is_compressed": summary.is_compressed,
    }


def _unread_count(summaries: list[FileSummary], position: int | None) -> int:
    """Number of stored records from a position on."""
    begin = position or 0
    return sum(max(each.end_index - max(each.first_index, begin), 0) for each in summaries)


def _info_lines(found: dict[str, Any]) -> Iterator[str]:
    offset = f" {found['epoch_offset_s']:+d} s" if found["epoch_offset_s"] else ""
    yield f"journal     {found['journal']}, a {found['face']}, id {found['id']}"
    yield (
        f"settings    rolls {found['roll_cycle']} in {found['time_zone']}{offset}, blocks of "
        f"{size_text(found['block_size'])}, {'encrypted' if found['is_encrypted'] else 'not encrypted'}"
    )
    yield f"records     {found['records']:,} in {counted(len(found['files']), 'file')} of {size_text(found['size'])}"
    if found["first_index"] is not None:
        yield f"first       {found['first_index']}  {found['first_at']}"
        yield f"last        {found['last_index']}  {found['last_at']}"
    pids = ", ".join(f"process {each['pid']}" for each in found["appenders"])
    closed = "closed cleanly" if found["was_closed_in_order"] else "not closed cleanly: the next appender recovers it"
    yield f"appenders   {pids or f'none ({closed})'}"
    yield f"lock        {_lock_text(found['lock'])}"
    if found["has_failed"]:
        yield "failed      the disk refused a flush: records may be lost until an appender opens the journal again"
    if found["replicated_until"] is not None:
        left = counted(found["not_replicated"], "record")
        yield f"replicated  up to, not including, {found['replicated_until']}; {left} not replicated"
    yield f"disk        {size_text(found['disk_free'])} free of {size_text(found['disk_size'])}"
    if found["tailers"]:
        yield ""
        rows: list[tuple[str, ...]] = [("tailer", "next index", "behind")]
        rows += [(each["name"], each["position"] or "-", f"{each['behind']:,}") for each in found["tailers"]]
        yield from table(rows, frozenset({2}))
    yield ""
    lines: list[tuple[str, ...]] = [("file", "cycle", "size", "records", "")]
    for each in found["files"]:
        state = "" if each["is_ended"] else "appended to" if found["appenders"] else "newest"
        lines.append((each["name"], each["cycle"], size_text(each["size"]), f"{each['records']:,}", state))
    heading, *files = table(lines, frozenset({2, 3}))
    yield heading
    for line, each in zip(files, found["files"], strict=True):
        yield line
        for end in ("first", "last") if each["records"] else ():
            yield f"  {end:<5}  {each[f'{end}_index']}  {each[f'{end}_at']}"
    yield from (f"unreadable  {reason}" for reason in found["unreadable"].values())
    yield from (f"missing     {name}" for name in found["missing"])


def _lock_text(lock: dict[str, Any] | None) -> str:
    if lock is None:
        return "free"
    state = "alive" if lock["is_alive"] else "dead: the next appender, or tandemfeed journal unlock, frees the lock"
    return f"held by process {lock['pid'] or 'unknown'} ({state})"


# --- history ----------------------------------------------------------------------------------------------------------


def run_history(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0; 1 if records were missing."""
    require_journal(arguments.folder)
    statistics, read_count, malformed_count = LatencyStatistics(), 0, 0
    wanted = Range.of(arguments)
    with Interruption() as interruption, Tailer(arguments.folder, key=read_key(arguments.key_file)) as tailer:
        to_begin(tailer, wanted, arguments.folder)
        for entries in forward(tailer, wanted, is_over=lambda: interruption.is_requested):
            for entry in entries[: None if arguments.max is None else arguments.max - read_count]:
                read_count += 1
                try:
                    history, _ = split_history(entry.record)
                except MalformedHistory:
                    malformed_count += 1
                    continue
                if history is not None:
                    statistics.add(history)
            if read_count == arguments.max:
                break
    if arguments.json:
        sums = {"records": read_count, "histories": statistics.history_count, "malformed": malformed_count}
        sums |= {"negative": statistics.negative_count, "unmeasured": statistics.unmeasured_count}
        stages = [asdict(each) for each in statistics.stages()]
        streams.say(to_json(sums | {"stages": stages, "end_to_end": asdict(statistics.end_to_end())}))
        return lost_status(tailer.lost_count, arguments.folder, streams)
    streams.say(
        f"{counted(read_count, 'record')}, {statistics.history_count:,} with a history, {malformed_count:,} malformed"
    )
    if statistics.history_count:
        streams.say(str(statistics))
    return lost_status(tailer.lost_count, arguments.folder, streams)
