"""`unlock`, `prune`: the two sub-commands that change a journal."""

from __future__ import annotations

import argparse
import time
from typing import Any

from tandemfeed.journal.append.maintenance import HolderIsAlive, LockFreed, free_lock, plan, prune
from tandemfeed.journal.append.retention import Retention
from tandemfeed.journal.check.journal_files import JournalFiles, size_on_disk
from tandemfeed.journal.commands.options import (
    CommandError,
    add_subcommand,
    age_s,
    count,
    read_key,
    require_journal,
    size,
)
from tandemfeed.journal.commands.presentation import counted, size_text
from tandemfeed.journal.commands.streams import Streams
from tandemfeed.journal.format.sealing import require_key

EXIT_HELD = 1


def add_to(subcommands: Any) -> None:
    """Add the sub-commands and their options."""
    unlock = add_subcommand(
        subcommands,
        "unlock",
        "show the holder of the appenders' lock; free a dead holder's lock",
        "Show the processes that append and the holder of the appenders' lock, and free the lock if its holder is "
        "dead. Seldom needed: appenders take over a dead process's lock themselves. Exit status 1: the holder is "
        "alive, and nothing was changed.",
        ["unlock DIR", "unlock DIR --force"],
        run_unlock,
    )
    unlock.add_argument("--force", action="store_true",
                        help="take the lock even from a living process. Two processes may then append at the same time "
                        "and damage each other's records: if possible, end that process instead")  # fmt: skip
    prune_parser = add_subcommand(
        subcommands,
        "prune",
        "release old files",
        "Delete whole files, oldest first, that exceed the given limits. The newest file always stays, and so does "
        "every file from the first that a named tailer has not read or a follower has not acknowledged. Can run while "
        "appenders do.",
        ["prune DIR --age 7d --dry-run", "prune DIR --size 100G", "prune DIR --files 30 --even-unread"],
        run_prune,
    )
    prune_parser.add_argument(
        "--age", type=age_s, metavar="AGE", help="keep files appended to within this time: 90s, 12h, 7d"
    )
    prune_parser.add_argument("--size", type=size, metavar="SIZE", help="keep at most this many bytes: 512M, 10G")
    prune_parser.add_argument("--files", type=count, metavar="N", help="keep at most this many files")
    prune_parser.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    prune_parser.add_argument(
        "--even-unread",
        action="store_true",
        help="also delete what named tailers have not read or followers have not acknowledged",
    )


def run_unlock(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0 if the lock is free now, 1 if it is held or the journal has failed."""
    require_journal(arguments.folder, is_changed=True)
    _check_key(arguments)
    with JournalFiles(arguments.folder) as files:
        appenders, has_failed = files.appenders(), files.has_failed
    for each in appenders:
        streams.say(f"process {each.pid} has the journal open for appending")
    if not appenders:
        streams.say("no process has the journal open for appending")
    if arguments.force:
        streams.note("warning: --force takes the lock even from a living process; if that continues, records are lost")
    outcome = free_lock(arguments.folder, even_alive=arguments.force)
    match outcome:
        case HolderIsAlive(holder):
            streams.say(f"the lock is held by process {holder.pid}, which is alive; nothing was changed")
            streams.note(
                f"tandemfeed journal unlock: {arguments.folder}: end process {holder.pid} (kill {holder.pid}; if it is "
                f"stopped, kill -CONT {holder.pid}; if it does not end, kill -KILL {holder.pid}); its lock ends with it"
            )
            return EXIT_HELD
        case LockFreed(holder):
            state = "is alive" if holder.is_alive else "is dead"
            streams.say(f"the lock was held by process {holder.pid or 'unknown'}, which {state}; it is free now")
        case _:
            streams.say("the lock is free" if not has_failed else "no process holds the lock")
    if has_failed:
        streams.note(
            f"tandemfeed journal unlock: {arguments.folder}: the disk refused a flush, so no process may append; check "
            "the disk, then open the journal for appending again, which writes again what may be lost"
        )
        return EXIT_HELD
    return 0


def run_prune(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0."""
    require_journal(arguments.folder, is_changed=True)
    _check_key(arguments)
    retention = Retention(age_s=arguments.age, size=arguments.size, files=arguments.files)
    if retention == Retention():
        raise CommandError("no limit given; give --age, --size, --files, or several of them")
    pruning, kept_count = plan(arguments.folder, retention, time.time(), even_unread=arguments.even_unread)
    sizes = {name: found for name in pruning.files if (found := size_on_disk(name))}
    for name, file_size in sizes.items():
        streams.say(f"{'would release' if arguments.dry_run else 'released'} {name.path.name}  {size_text(file_size)}")
    freed = sum(sizes.values()) if arguments.dry_run else prune(arguments.folder, pruning)
    if pruning.kept_for:
        streams.note(f"the next file is kept for {pruning.readers_text()}; --even-unread releases it")
    if pruning.is_busy:
        streams.note("the next file is being compressed; prune again in a moment")
    verb = "would be released" if arguments.dry_run else "released"
    streams.say(f"{counted(len(sizes), 'file')} {verb}, {size_text(freed)}; {kept_count:,} kept")
    return 0


def _check_key(arguments: argparse.Namespace) -> None:
    """Neither sub-command needs a key, but a given key must be the journal's."""
    if (key := read_key(arguments.key_file)) is not None:
        with JournalFiles(arguments.folder) as files:
            require_key(key, files.settings.key_check, arguments.folder)
