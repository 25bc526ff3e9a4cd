"""Damaged packets: nothing crashes, nothing is read beyond the packet, the stream continues.

Each packet ends directly before a page that must not be touched, so that a read beyond it ends the process. To test one
million packets: `TANDEMFEED_FUZZ=1000000 pytest tests/conversion/kernel/test_fuzz.py`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.benchmarks.conversion import header, itch_messages, tick_packets

ROOT = Path(__file__).resolve().parents[3]
PACKETS = int(os.environ.get("TANDEMFEED_FUZZ", "4000"))
FOLDERS = {"ticks": ROOT / "deploy" / "examples" / "ticks", "books": ROOT / "benchmarks" / "itch_book"}
PAGES = 4
PROT_NONE = 0


class Brink:
    """Memory in which data ends directly before a guarded page."""

    def __init__(self) -> None:
        self._size = PAGES * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        guard = ctypes.c_void_p(address + self._size)
        if ctypes.CDLL(None, use_errno=True).mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE) != 0:
            pytest.skip("no page can be guarded here")

    def place(self, data: bytes) -> memoryview:
        start = self._size - len(data)
        self._memory[start : self._size] = data
        return memoryview(self._memory)[start : self._size].toreadonly()


def damaged(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        place = random.randrange(len(changed))
        how = random.random()
        if how < 0.5:
            changed[place] = random.choice([0, 1, 127, 128, 255, random.randrange(256)])
        elif how < 0.7:
            del changed[place : place + random.randint(1, 9)]
        elif how < 0.85:
            changed[place:place] = random.randbytes(random.randint(1, 9))
        else:
            del changed[place:]
        if not changed:
            changed = bytearray(b"\0")
    return bytes(changed)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_no_damaged_packet_is_read_beyond_its_end(name: str) -> None:
    folder, random = FOLDERS[name], Random(7)
    table = load_checked_table(
        folder / "source-format.xml", folder / "converter-table.xml", folder / "message-model.xml"
    )
    converter, brink = CompiledConverter(table), Brink()
    frames = itch_messages(2_000, 20, 100)
    whole = {
        "ticks": tick_packets(200, 50),
        "books": [header(20) + b"".join(frames[at : at + 20]) for at in range(0, 2_000, 20)],
    }[name]
    out = np.zeros(6_000, np.uint8)
    for _ in range(PACKETS // len(FOLDERS)):
        data = damaged(random, random.choice(whole))
        view = brink.place(data)
        converter.check(view)  # type: ignore[arg-type]  # whatever it answers, convert must be safe
        count = random.choice([34, 20, 1, 65_535])
        result = converter.convert(view, random.choice([0, 0, 3]), count, out, 0, 5_000)  # type: ignore[arg-type]
        assert 0 <= result.end <= 5_000
        assert result.source_count <= count
    refused = sum(converter.counts().values())
    assert refused > 0
    assert not out[5_000:].any()
    assert converter.take_dead_letters()
    healthy = whole[0]
    assert converter.convert(healthy, 0, 20, out, 0, 5_000).message_count == 20
