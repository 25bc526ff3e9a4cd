"""Parsing of option values (sizes, ages, times, indices, keys), and the options that several sub-commands share."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from tandemfeed.journal.check.source_sequence import SequenceRule, parse_rule
from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.journal.format.roll_cycle import NS_PER_S, TIME_NS_END, parse_index
from tandemfeed.journal.format.sealing import KEY_SIZE

SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
AGE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([smhdw]?)", re.IGNORECASE)
AGE_FACTORS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
FRACTION = re.compile(r"(?P<whole>[^.,]+?:\d\d)[.,](?P<fraction>\d{1,9})(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?")
KEY_FILE_SIZE_MAX = 1_024  # more than any key file has
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLES_INDENT = "  "
HELP_WIDTH = 100


class CommandError(Exception):
    """An error that the user can correct; the text says what is wrong, where, and what to do."""


class Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def size(text: str) -> int:
    """Bytes: 500, 10K, 1.5G."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or 10K, 512M, 10G, 2T")
    return int(float(found[1]) * SIZE_FACTORS[found[2].upper()])


def age_s(text: str) -> float:
    """Seconds: 90, 15m, 12h, 7d, 2w."""
    found = AGE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age; write seconds, or 90s, 15m, 12h, 7d, 2w")
    return float(found[1]) * AGE_FACTORS[found[2].lower()]


def count(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive integer")
    return int(text)


def index(text: str) -> int:
    """An index, hexadecimal with or without 0x, as this command prints it."""
    try:
        return parse_index(text if text.lower().startswith("0x") else f"0x{text}")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an index; write up to 16 hexadecimal digits, as shown by --show-index"
        ) from None


def time_ns(text: str) -> int:
    """A time: nanoseconds since 1970, or ISO 8601, in UTC unless it names a zone."""
    if text.isdecimal():
        return _checked_time(text, int(text))
    found = FRACTION.fullmatch(text)
    whole, fraction_ns = text, 0
    if found is not None:  # datetime has only microseconds
        whole, fraction_ns = found["whole"] + (found["zone"] or ""), int(found["fraction"].ljust(9, "0"))
    try:
        moment = datetime.fromisoformat(whole)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write 2026-11-21T08:30:00Z, 2026-11-21, or nanoseconds since 1970"
        ) from None
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - EPOCH
    return _checked_time(text, (since.days * 86_400 + since.seconds) * NS_PER_S + fraction_ns)


def _checked_time(text: str, at_ns: int) -> int:
    if not 0 <= at_ns < TIME_NS_END:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time between 1970 and 2262")
    return at_ns


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as wrong:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {wrong}") from None


def sequence_rule(text: str) -> SequenceRule:
    """How to find a record's source sequence number."""
    try:
        return parse_rule(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def read_key(path: Path | None) -> bytes | None:
    """The key in a file: 32 bytes, or 64 hexadecimal digits.

    Raises:
        CommandError: the file cannot be read, or does not contain a key.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(KEY_FILE_SIZE_MAX)
    except OSError as refused:
        raise CommandError(f"{path}: {refused.strerror}; give the file that holds the journal's key") from None
    if len(data) == KEY_SIZE:
        return data
    digits = data.strip()
    if re.fullmatch(rb"[0-9a-fA-F]{%d}" % (2 * KEY_SIZE), digits):
        return bytes.fromhex(digits.decode())
    raise CommandError(f"{path}: not a key file; it must contain {2 * KEY_SIZE} hexadecimal digits or {KEY_SIZE} bytes")


def require_journal(folder: Path, *, is_changed: bool = False) -> None:
    """Refuse a folder that is not a journal.

    Args:
        is_changed: the command changes files or locks; queues and stores manage these themselves, so refuse them.

    Raises:
        CommandError
    """
    if not folder.is_dir():
        raise CommandError(f"{folder}: no such folder; give the folder of a journal")
    if not (folder / CONTROL_NAME).exists():
        raise CommandError(f"{folder} is not a journal: it has no {CONTROL_NAME}; give the folder of a journal")
    with Control(folder / CONTROL_NAME, writable=False) as control:
        face = control.settings.face
    if is_changed and face != "journal":
        raise CommandError(f"{folder} is a {face}, not a journal; it manages its files and locks itself when opened")


def add_subcommand(
    subcommands: Any, name: str, summary: str, description: str, examples: list[str], run: Callable[..., int]
) -> argparse.ArgumentParser:
    """A sub-command's parser, with the folder, the key and examples."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        name,
        allow_abbrev=False,
        help=summary,
        description=textwrap.fill(description, HELP_WIDTH),
        epilog="examples:\n" + "\n".join(f"{EXAMPLES_INDENT}tandemfeed journal {each}" for each in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the journal's folder")
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="file with the key of an encrypted journal: 64 hexadecimal digits, or 32 bytes",
    )
    parser.set_defaults(run=run)
    return parser


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where to begin and to end."""
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--from-index", type=index, metavar="INDEX", help="begin at this record (hexadecimal)")
    begin.add_argument(
        "--from-time", type=time_ns, metavar="TIME", help="begin at the first record appended at or after this time"
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--until-index", type=index, metavar="INDEX", help="end before this record (hexadecimal)")
    end.add_argument(
        "--until-time", type=time_ns, metavar="TIME", help="end before the first record appended at or after this time"
    )


REFUSALS = (CommandError, JournalError)
