"""Journals for tests of the command line, and the command as a real process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tandemfeed.journal import Journal
from tandemfeed.journal.format.compression import compress_block
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN

ROOT = Path(__file__).resolve().parents[2]
BLOCK = BLOCK_SIZE_MIN
BEGIN_NS = 1_795_000_000_000_000_000  # 2026-11-18T11:06:40Z
STEP_NS = 100_000_000
KEY = bytes(range(32))
PATIENCE_S = 60


def made(
    folder: Path,
    records: Sequence[bytes],
    *,
    key: bytes | None = None,
    step_ns: int = STEP_NS,
    is_compressed: bool = False,
    roll_cycle: str = "SECONDLY",
) -> list[int]:
    """Make a journal of these records, a tenth of a second apart, ten per file; return their indices."""
    now_ns = BEGIN_NS

    def clock_ns() -> int:
        return now_ns

    indices = []
    with Journal.open(folder, roll_cycle=roll_cycle, block_size=BLOCK, key=key, clock_ns=clock_ns) as journal:
        for record in records:
            indices.append(journal.append(record))
            now_ns += step_ns
    if is_compressed:
        for path in files_of(folder)[:-1]:
            compress_block(path)
    return indices


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Distinct records."""
    return [b"record %d" % number for number in range(first, first + count)]


def files_of(folder: Path) -> list[Path]:
    """The block files, oldest first."""
    return sorted(path for path in folder.iterdir() if ".tfj" in path.name and not path.name.startswith("."))


def damage(path: Path, offset: int, data: bytes = b"\xa5") -> None:
    """Change bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(len(data))
        file.seek(offset)
        file.write(data if before != data else bytes(each ^ 0xFF for each in data))


def command(*arguments: object) -> list[str]:
    """The arguments of a process that runs the command."""
    return [sys.executable, "-m", "tandemfeed.journal.commands.cli", *map(str, arguments)]


class Process:
    """The running command. Tests wait for its output, never for a time."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out: IO[bytes] = self.process.stdout
        self.err: IO[bytes] = self.process.stderr
        self._held: dict[int, bytes] = {}

    def line(self, stream: IO[bytes] | None = None) -> str:
        """The next line of its output."""
        return self._until(stream or self.out, lambda data: b"\n" in data)

    def _until(self, stream: IO[bytes], is_there: Callable[[bytes], bool]) -> str:
        descriptor = stream.fileno()
        data = self._held.get(descriptor, b"")
        while not is_there(data):
            ready, _, _ = select.select([descriptor], [], [], PATIENCE_S)
            assert ready, f"no further output after {data!r}"
            chunk = os.read(descriptor, 65_536)
            assert chunk, f"it ended after {data!r}: {self.err.read()!r}"
            data += chunk
        line, _, self._held[descriptor] = data.partition(b"\n")
        return line.decode()

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Send a signal and wait for the end; return the exit status and the rest of stderr."""
        if number is not None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err.decode()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.out.close()
        self.err.close()


def append_in_lines(folder: str) -> None:
    """The code of an appending process: append each line of stdin, and print its index."""
    with Journal.open(Path(folder), block_size=BLOCK) as journal:
        _print("ready")
        for line in sys.stdin:
            _print(str(journal.append(line.rstrip("\n").encode())))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Appender:
    """A process that appends."""

    def __init__(self, folder: Path) -> None:
        code = "import sys; from tests.journal.journals_made import append_in_lines; append_in_lines(sys.argv[1])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._output_line() == "ready"

    def append(self, text: str) -> int:
        """Make the process append a record; return the index."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return int(self._output_line())

    def _output_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()
