"""Compiles the journal's functions in advance, so that a first start does not wait for the compiler."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np

from tandemfeed.journal.compiled.compiling import CACHE_FOLDER
from tandemfeed.journal.compiled.kernels import AT_OFFSET, new_state, roll_forward
from tandemfeed.journal.compiled.reading import find_after_damage
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, DATA_OFFSET
from tandemfeed.journal.store import Journal


def compile_ahead() -> None:
    """Compile what appenders and tailers need, and the recovery after a crash; what was compiled before is loaded.

    Raises:
        OSError: the temporary journal cannot be created.
    """
    with TemporaryDirectory(dir=CACHE_FOLDER) as folder, Journal.open(folder, block_size=BLOCK_SIZE_MIN) as journal:
        journal.tailer().close()
    empty, state = np.zeros(DATA_OFFSET, np.uint8), new_state()
    state[AT_OFFSET] = DATA_OFFSET
    roll_forward(empty.ctypes.data, state)
    find_after_damage(empty.ctypes.data, 0, 0, 0, state)
