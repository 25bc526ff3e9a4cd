"""`unlock`, `prune`: the two sub-commands that change something."""

from __future__ import annotations

import argparse
import time
from typing import Any

from journal.commands.options import CommandError, add_subcommand, age_s, count, read_key, require_journal, size
from journal.commands.presentation import counted, size_text
from journal.commands.streams import Streams
from journal.journal_files import JournalFiles, size_on_disk
from journal.keeper import Retention
from journal.roll_cycle import format_index
from journal.sealing import require_key
from journal.upkeep_by_hand import HolderLives, LockFreed, free_lock, plan_pruning, prune

EXIT_HELD = 1


def add_to(subcommands: Any) -> None:
    """What they take."""
    unlock = add_subcommand(
        subcommands,
        "unlock",
        "show who holds the appenders' lock; free a dead one's",
        "Show who appends and who holds the appenders' lock, and free the lock if its holder is dead. Seldom needed: "
        "appenders take a dead one's lock over by themselves. Exit status 1: its holder lives, nothing was changed.",
        ["unlock DIR", "unlock DIR --force"],
        run_unlock,
    )
    unlock.add_argument("--force", action="store_true",
                        help="take the lock even from a living process. Two may then append at once, and what they "
                        "append at the same moment is damaged: end that process instead if you can")  # fmt: skip
    prune_parser = add_subcommand(
        subcommands,
        "prune",
        "release old files",
        "Delete whole files, oldest first, that the given bounds do not keep: never the newest, and none from the "
        "first on that a named tailer has not read, or a follower not acknowledged. Works beside appenders.",
        ["prune DIR --age 7d --dry-run", "prune DIR --size 100G", "prune DIR --files 30 --even-unread"],
        run_prune,
    )
    prune_parser.add_argument("--age", type=age_s, metavar="AGE", help="keep what was appended to since: 90s, 12h, 7d")
    prune_parser.add_argument("--size", type=size, metavar="SIZE", help="keep so many bytes in all: 512M, 10G")
    prune_parser.add_argument("--files", type=count, metavar="N", help="keep so many files")
    prune_parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune_parser.add_argument(
        "--even-unread",
        action="store_true",
        help="also what named tailers have not read, or followers not acknowledged",
    )


def run_unlock(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0 if the lock is free now, 1 if it is held."""
    require_journal(arguments.folder, is_changed=True)
    _check_key(arguments)
    with JournalFiles(arguments.folder) as files:
        appenders = files.appenders()
    for each in appenders:
        streams.say(f"process {each.pid} has the journal open for appending")
    if not appenders:
        streams.say("no process has the journal open for appending")
    if arguments.force:
        streams.note("warning: --force takes the lock even from a living process; should that go on, records get lost")
    outcome = free_lock(arguments.folder, even_alive=arguments.force)
    match outcome:
        case HolderLives(holder):
            streams.say(f"the lock is held by process {holder.pid}, which lives; nothing was changed")
            streams.note(
                f"tandemfeed journal unlock: {arguments.folder}: end process {holder.pid} (kill {holder.pid}; if it is "
                f"stopped, kill -CONT {holder.pid}; if it does not end, kill -KILL {holder.pid}); its lock ends with it"
            )
            return EXIT_HELD
        case LockFreed(holder):
            state = "lives" if holder.is_alive else "is dead"
            streams.say(f"the lock was held by process {holder.pid or 'unknown'}, which {state}; it is free now")
        case _:
            streams.say("the lock is free")
    return 0


def run_prune(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0."""
    require_journal(arguments.folder, is_changed=True)
    _check_key(arguments)
    retention = Retention(age_s=arguments.age, size=arguments.size, files=arguments.files)
    if retention == Retention():
        raise CommandError("nothing says what to keep: give --age, --size or --files (or several)")
    with JournalFiles(arguments.folder) as files:
        pruning = plan_pruning(files, retention, time.time(), even_unread=arguments.even_unread)
        kept_count = len(files.names()) - len(pruning.files)
    sizes = {name: found for name in pruning.files if (found := size_on_disk(name))}
    for name, file_size in sizes.items():
        streams.say(f"{'would release' if arguments.dry_run else 'released'} {name.path.name}  {size_text(file_size)}")
    freed = sum(sizes.values()) if arguments.dry_run else prune(pruning)
    for name_, position in pruning.kept_for.items():
        at = "nowhere yet" if position is None else f"at {format_index(position)}"
        streams.note(f"the next file is kept for {name_}, which is {at}; --even-unread releases it")
    if pruning.is_busy:
        streams.note("the next file is being compressed; prune again in a moment")
    verb = "would be released" if arguments.dry_run else "released"
    streams.say(f"{counted(len(sizes), 'file')} {verb}, {size_text(freed)}; {kept_count:,} kept")
    return 0


def _check_key(arguments: argparse.Namespace) -> None:
    """Neither needs a key; one that is given must be the journal's."""
    if (key := read_key(arguments.key_file)) is not None:
        with JournalFiles(arguments.folder) as files:
            require_key(key, files.settings.key_check, arguments.folder)
