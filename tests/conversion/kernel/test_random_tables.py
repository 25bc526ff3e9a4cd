"""Random formats, tables and messages: kernel and interpreter agree to the byte, in output, counts and state."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.conversion.random_documents import random_documents, random_packet

# Each table is a kernel to compile, so there are only a few. They are the same each time, so that the cache has them.
TABLES = int(os.environ.get("TANDEMFEED_TABLES", "2"))
PACKETS = 40


def agree(table: ConverterTable, random: Random, packets: int) -> int:
    """Compare kernel and interpreter; returns the number of output messages."""
    compiled, oracle = CompiledConverter(table, near_rows=0), InterpretedConverter(table)
    written = 0
    for number in range(packets):
        count = random.randint(1, 12)
        data = random_packet(random, table.source_format, count)
        if random.random() < 0.05:
            data = data[: random.randint(32, len(data))]
        assert compiled.check(data) == oracle.check(data)
        skip = 0
        while skip < count:
            ours, theirs = np.zeros(3_000, np.uint8), np.zeros(3_000, np.uint8)
            room = random.choice([500, 1_500, 2_900])
            result = compiled.convert(data, skip, count - skip, ours, 8, 8 + room)
            expected = oracle.convert(data, skip, count - skip, theirs, 8, 8 + room)
            assert result == expected
            assert bytes(ours[: result.end]) == bytes(theirs[: result.end])
            assert not ours[8 + room :].any()
            assert not ours[:8].any()
            assert compiled.counts() == oracle.counts()
            assert compiled.take_dead_letters() == oracle.take_dead_letters()
            skip += result.source_count
            written += result.message_count
            if result.source_count == 0:
                break
        if number % 10 == 9:
            assert compiled.digests().tolist() == oracle.digests().tolist()
            assert compiled.snapshot() == oracle.snapshot()
            assert compiled.snapshot_buckets([1, 9]) == oracle.snapshot_buckets([1, 9])
            compiled.restore(oracle.snapshot())
    return written


@pytest.mark.timeout(1_200)
@settings(
    max_examples=TABLES,
    database=None,
    derandomize="TANDEMFEED_TABLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(0, 2**32))
def test_kernel_and_interpreter_agree_on_any_format_and_table(seed: int) -> None:
    random = Random(seed)
    with TemporaryDirectory() as folder:
        _, table = random_documents(random, Path(folder))
        agree(table, random, PACKETS)
