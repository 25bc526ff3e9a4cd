"""The starts that `tandemfeed subscribe --start` understands."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import pytest

from tandemfeed.client_lib.commands.subscribe import _start, _start_part


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["live"], "live"),
        (["a.b=7", "a.c=20261120/5"], {"a.b": 7, "a.c": (20_261_120, 5)}),
        (["2026-11-22T14:30Z"], datetime(2026, 11, 22, 14, 30, tzinfo=UTC)),
    ],
)
def test_a_start_is_a_name_a_time_or_a_message_perhaps_of_a_former_session(texts: list[str], expected: object) -> None:
    assert _start([_start_part(text) for text in texts]) == expected


@pytest.mark.parametrize("text", ["a.b=0", "a.b=/5", "a.b=20261120/", "a.b=20261120/0", "=5", "a.b=1/2/3", "yesterday"])
def test_what_is_no_start_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="TOPIC=SESSION/SEQ"):
        _start_part(text)
