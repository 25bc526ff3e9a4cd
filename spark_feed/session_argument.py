"""The argument `--session YYYYMMDD` of the feed source's commands."""

from __future__ import annotations

import argparse


def session(text: str) -> int:
    """Read a session.

    Raises:
        argparse.ArgumentTypeError: it is not a day.
    """
    if not (text.isascii() and text.isdecimal() and 19_700_101 <= int(text) <= 99_991_231):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a session; expected a trading day as YYYYMMDD, such as 20261121"
        )
    return int(text)
