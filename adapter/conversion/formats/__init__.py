"""The source formats that tandemfeed ships: a document and a converter table each, and readers for files and packets.

`captures` finds datagrams, `packets` their messages, `frames` where each one ends; `files` reads what has no packets.
A reader is pure: bytes in, frames out, as the venue framed them (`chunks.FrameChunk`). It reads no more of a message
than it needs to find the next one. `document` returns the path of a shipped document.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def document(name: str) -> Path:
    """The path of a shipped document, such as `itch50.xml`.

    Raises:
        FileNotFoundError: the text lists the shipped documents.
    """
    path = FOLDER / name
    if path.suffix != ".xml" or path.parent != FOLDER or not path.is_file():
        known = ", ".join(sorted(each.name for each in FOLDER.glob("*.xml")))
        raise FileNotFoundError(f"no shipped document {name!r}; the shipped documents are {known}")
    return path
