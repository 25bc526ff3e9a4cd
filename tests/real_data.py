"""Finds real recordings and third-party schemas, which are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_file(relative: str) -> Path:
    """The path of a real file; skips the test if it does not exist.

    Searches the folders in the variable TANDEMFEED_TEST_DATA (separated as in PATH), then `shared/data` next to the
    checkout.
    """
    folders = [Path(name) for name in os.environ.get("TANDEMFEED_TEST_DATA", "").split(os.pathsep) if name]
    folders.append(ROOT.parent / "shared" / "data")
    for folder in folders:
        if (folder / relative).exists():
            return folder / relative
    pytest.skip(f"no {relative} in {' or '.join(map(str, folders))}; set TANDEMFEED_TEST_DATA to search other folders")
