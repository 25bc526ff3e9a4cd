"""Tasks read the files of a recording, and report what is wrong with one as a row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.numbering.encoding import BLOCK_SCHEMA, EncodingError, blocks_in
from tandemfeed.spark_feed.numbering.reading import FileReader
from tandemfeed.spark_feed.numbering.screening import Rules
from tandemfeed.spark_feed.numbering.split import SplitRule
from tests.spark_feed.source_material import SOURCE_FORMAT, batches_of, make_recording


@pytest.fixture
def reader(tmp_path: Path) -> FileReader:
    return FileReader(
        load_source_format(SOURCE_FORMAT), SplitRule.LETTER, 2, Rules(), 900, tmp_path / "journal" / "quarantine"
    )


def _rows(file: Path, reader: FileReader) -> dict[int, pa.Table]:
    table = pa.Table.from_batches(reader.blocks(file.as_uri()), schema=BLOCK_SCHEMA)
    return {stream: table.filter(pc.equal(table["stream"], stream)) for stream in range(2)}


def test_the_blocks_of_a_file_pass_the_shuffle_unchanged(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "a recording", 900, 900)
    ((expected,),) = batches_of(tmp_path / "a recording")
    for stream, rows in _rows(tmp_path / "a recording" / "part-00000000.parquet", reader).items():
        (found,) = blocks_in(rows)
        assert found[:2] == expected[stream][:2] == (0, 900)
        assert [column.tolist() for column in found[2:]] == [column.tolist() for column in expected[stream][2:]]


def test_a_damaged_file_is_reported_to_the_owner_of_every_stream(tmp_path: Path, reader: FileReader) -> None:
    file = tmp_path / "part-00000000.parquet"
    file.write_bytes(b"not Parquet")
    for rows in _rows(file, reader).values():
        with pytest.raises(EncodingError, match=r"part-00000000\.parquet: .*Parquet"):
            blocks_in(rows)


def test_a_file_with_a_record_missing_is_reported(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "recording", 100, 100)
    file = tmp_path / "recording" / "part-00000000.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(0, 40), table.slice(41)]), file)
    with pytest.raises(EncodingError, match="found record 41, expected record 40"):
        blocks_in(_rows(file, reader)[0])
