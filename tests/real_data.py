"""Where tests find real recordings and other people's schemas, which are no part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_file(relative: str) -> Path:
    """A real file; skips the test where there is none.

    Folders searched: those of the variable TANDEMFEED_TEST_DATA (separated like PATH), then `shared/data` beside the
    checkout.
    """
    folders = [Path(name) for name in os.environ.get("TANDEMFEED_TEST_DATA", "").split(os.pathsep) if name]
    folders.append(ROOT.parent / "shared" / "data")
    for folder in folders:
        if (folder / relative).exists():
            return folder / relative
    pytest.skip(f"no {relative} in {' or '.join(map(str, folders))} (TANDEMFEED_TEST_DATA names other folders)")
