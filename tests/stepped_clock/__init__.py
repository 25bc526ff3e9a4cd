"""Processes on a host whose wall clock is set while they run: all that they read it with is stepped, Python or not."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stepped_clock.c")
OFFSET = "STEPPED_CLOCK"  # the variable that names the file with the offset


def stepped_host(folder: Path) -> Mapping[str, str]:
    """The environment of processes whose clock `set_clock` sets. Skips the test where no C compiler is installed."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, offset = folder / "stepped_clock.so", folder / "clock_offset"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True, capture_output=True)
    offset.write_bytes(struct.pack("<q", 0))
    return {**os.environ, "LD_PRELOAD": str(library), OFFSET: str(offset)}


def set_clock(offset_s: int, environment: Mapping[str, str] = os.environ) -> None:
    """Set the clock of the host to this many seconds ahead of the real one."""
    path = environment[OFFSET]
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, struct.pack("<q", offset_s * 1_000_000_000), 0)  # whole: others read it meanwhile
    os.close(descriptor)


def is_stepped() -> bool:
    """Whether this process's clock follows `set_clock`."""
    if OFFSET not in os.environ:
        return False
    before = time.time()
    set_clock(1_000_000)
    try:
        return time.time() - before > 500_000
    finally:
        set_clock(0)
