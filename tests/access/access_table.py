"""The tables of docs/access.md: for each server, each call and each caller, the answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import grpc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "access.md"
SERVERS = {"The admin server": "admin server", "An adapter": "adapter", "A source gateway": "gateway",
           "A contribution gateway": "contribution gateway"}  # fmt: skip
CODES = {
    "–": grpc.StatusCode.UNAUTHENTICATED,
    "no": grpc.StatusCode.PERMISSION_DENIED,
    "?": grpc.StatusCode.NOT_FOUND,
    "!": grpc.StatusCode.FAILED_PRECONDITION,
}


class Expectation(NamedTuple):
    """One cell. Attributes: code: None: the call is served."""

    server: str
    call: str
    caller: str
    code: grpc.StatusCode | None


def expectations() -> list[Expectation]:
    """Every cell of the tables."""
    found = []
    for section in PAGE.read_text().split("\n### ")[1:]:
        heading, _, body = section.partition("\n## ")[0].partition("\n")
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")
        ]
        callers = rows[0][1:]
        for call, *answers in rows[2:]:
            assert len(answers) == len(callers), call
            found += [
                Expectation(SERVERS[heading], call, caller, None if answer == "yes" else CODES[answer])
                for caller, answer in zip(callers, answers, strict=True)
            ]
    return found
