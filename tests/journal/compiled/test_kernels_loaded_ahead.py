"""The functions for appends, rolls and reads are loaded when a journal or a tailer is opened, not later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# In a separate process, because other tests have already called these functions in this one.
SCRIPT = """
import sys
from pathlib import Path
from tandemfeed.journal import Journal
from tandemfeed.journal.compiled import kernels, reading

def loaded():
    kept = {**vars(kernels), **vars(reading)}
    return {name: list(each.signatures) for name, each in kept.items() if hasattr(each, "signatures")}

with Journal.open(Path(sys.argv[1]), block_size=1 << 20, exclusive=True) as journal, journal.tailer() as tailer:
    begin = journal.next_index
    assert begin == journal.first_index, "something was appended"
    before = loaded()
    for _ in range(3_000):
        journal.append(bytes(1_000))
    assert len(list(Path(sys.argv[1]).glob("*.tfj"))) >= 3, "it did not roll"
    assert len(list(tailer)) == 3_000
    batch = tailer.to_start().read_batch(10)
    assert tailer.to_index(begin + 2_500).read() == (begin + 2_500, bytes(1_000))
    assert tailer.to_time(int(batch.appended_at_ns[0])).read() is not None
    assert tailer.to_end().read() is None
    assert loaded() == before, (before, loaded())
"""

RECOVERY_SCRIPT = """
import sys
from pathlib import Path
from tandemfeed.journal import Journal
from tandemfeed.journal.compiled.kernels import roll_forward
from tandemfeed.journal.compiled.reading import find_after_damage

with Journal.open(Path(sys.argv[1]), block_size=1 << 20, exclusive=True) as journal, journal.tailer():
    assert find_after_damage.signatures, "a restart after a crash would compile it"
    assert roll_forward.signatures, "a restart would compile it"
"""


def test_no_kernel_is_loaded_between_opening_and_closing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "journal")], check=True, timeout=120)


def test_the_first_opening_compiles_what_the_opening_after_a_crash_needs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", RECOVERY_SCRIPT, str(tmp_path / "journal")], check=True, timeout=120)
