"""Source formats that tandemfeed ships: a document and a converter table each, and readers for their files and packets.

A reader is pure: bytes in, frames out, as the venue framed them (`chunks.FrameChunk`). It never looks into a message
beyond what it needs to find the next one. `document` gives the path of a shipped document.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def document(name: str) -> Path:
    """The path of a shipped document, such as `itch50.xml`.

    Raises:
        FileNotFoundError: names those there are.
    """
    path = FOLDER / name
    if path.suffix != ".xml" or path.parent != FOLDER or not path.is_file():
        known = ", ".join(sorted(each.name for each in FOLDER.glob("*.xml")))
        raise FileNotFoundError(f"no shipped document {name!r}; there are {known}")
    return path
