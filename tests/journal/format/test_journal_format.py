"""The format, checked with golden files and with the offsets in docs/journal-format.md."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from tandemfeed.journal import Journal, Tailer
from tandemfeed.journal.compiled.memory import address_of, crc_byte, crc_copy, crc_of
from tandemfeed.journal.format.block import blocks_in
from tests.journal.golden_files import GOLDEN, KEY, NAMES, ROWS, START, pieces, restore, write

EXPECTED = [b"first", b"", b"a batch", b"of", b"three", *(row.tobytes() for row in ROWS), b"in another cycle"]


@pytest.mark.parametrize("name", NAMES)
def test_files_written_today_equal_the_golden_files(tmp_path: Path, name: str) -> None:
    written = write(tmp_path / name, NAMES[name])
    assert [record for _, record in written] == EXPECTED
    golden = {file: [tuple(each) for each in content] for file, content in _load(name).items()}
    assert pieces(tmp_path / name) == golden


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_are_read_and_appended_to(tmp_path: Path, name: str) -> None:
    restore(name, tmp_path / name)
    with Tailer(tmp_path / name, key=NAMES[name]) as tailer:
        found = list(tailer)
    assert [record for _, record in found] == EXPECTED
    with Journal.open(
        tmp_path / name, block_size=1 << 18, roll_cycle="SECONDLY", time_zone="Europe/London", key=NAMES[name]
    ) as journal:
        assert list(journal.records()) == found
        assert journal.append(b"more") > found[-1][0]


def test_a_record_can_be_found_with_the_documented_offsets_alone(tmp_path: Path) -> None:
    restore("plain", tmp_path / "plain")
    data = blocks_in(tmp_path / "plain")[0].path.read_bytes()
    assert data[:4] == b"TFJB"
    assert struct.unpack_from("<I", data, 4) == (2,)
    (salt,) = struct.unpack_from("<I", data, 92)
    length, crc, sequence, at_ns, count, size = struct.unpack_from("<IIQQII", data, 4_096)
    assert (length, sequence, count, size) == (37, 0, 1, 5)
    assert at_ns >= START
    assert data[4_096 + 32 : 4_096 + length] == b"first"
    # CRC-32C that starts from the salt; google_crc32c complements the value before and after.
    assert crc == google_crc32c.extend(salt ^ 0xFFFF_FFFF, data[4_096 + 8 : 4_096 + length]) ^ 0xFFFF_FFFF


@njit
def _crc_of(data: bytes, crc: int) -> int:
    return crc_of(crc, address_of(data), len(data))


@njit
def _crc_copy(target: np.ndarray, data: bytes, crc: int) -> int:
    return crc_copy(crc, address_of(target), address_of(data), len(data))


@njit
def _crc_by_byte(data: bytes, crc: int) -> int:
    for value in data:
        crc = crc_byte(crc, value)
    return crc


@given(st.binary(max_size=64), st.integers(0, 5_000), st.integers(0, 0xFFFF_FFFF))
def test_the_checksum_is_crc32c_at_any_length_and_from_any_start(piece: bytes, repeat: int, start: int) -> None:
    data = piece * (repeat if len(piece) else 0)
    expected = google_crc32c.extend(start ^ 0xFFFF_FFFF, data) ^ 0xFFFF_FFFF
    target = np.zeros(len(data), np.uint8)
    assert _crc_of(data, start) == _crc_copy(target, data, start) == _crc_by_byte(data, start) == expected
    assert target.tobytes() == data


def test_a_copy_that_bypasses_the_caches_is_equal() -> None:
    data = np.random.default_rng(3).integers(0, 256, 700_001, np.uint8).tobytes()
    target = np.zeros(len(data), np.uint8)
    assert _crc_copy(target, data, 0xFFFF_FFFF) ^ 0xFFFF_FFFF == google_crc32c.value(data)
    assert target.tobytes() == data


def test_an_encrypted_body_cannot_be_decrypted_with_another_header(tmp_path: Path) -> None:
    restore("sealed", tmp_path / "sealed")
    path = blocks_in(tmp_path / "sealed")[0].path
    data = bytearray(path.read_bytes())
    (salt,) = struct.unpack_from("<I", data, 92)
    (length,) = struct.unpack_from("<I", data, 4_096)
    data[4_096 + 28] ^= 1  # change the record size, which is not encrypted, and update the CRC
    crc = google_crc32c.extend(salt ^ 0xFFFF_FFFF, bytes(data[4_096 + 8 : 4_096 + length])) ^ 0xFFFF_FFFF
    struct.pack_into("<I", data, 4_100, crc)
    path.write_bytes(data)
    with Tailer(tmp_path / "sealed", key=KEY) as tailer:
        assert [record for _, record in tailer] == EXPECTED[1:]
        assert tailer.lost_count == 1


def _load(name: str) -> dict[str, list[list[object]]]:
    found: dict[str, list[list[object]]] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found
