"""The Spark session that the source job uses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tandemfeed.spark_feed.numbering.driver.class_archive import SUFFIX, ClassArchive
from tests.spark_feed.source_material import ROOT

PROGRAM = """
import sys
from pathlib import Path
from tandemfeed.spark_feed.numbering.driver.session import start_session

spark = start_session("local[1]", "512m", Path(sys.argv[1]))
print(spark.range(10).mapInArrow(lambda batches: batches, "id bigint").toArrow().num_rows)
spark.stop()
"""
ARCHIVE = """
import sys
from pathlib import Path
from tandemfeed.spark_feed.numbering import command
from tandemfeed.spark_feed.numbering.driver import class_archive

class_archive.cache_places = lambda: (Path(sys.argv[1]),)
command.main(["--archive-classes"])
"""


@pytest.mark.processes
def test_spark_does_not_warn_about_pandas_which_the_job_does_not_use(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "default", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["10"]
    assert "pandas" not in done.stderr


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_source_job_archives_the_classes_of_spark(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ARCHIVE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=True)
    (archive,) = tmp_path.glob("spark-classes-*/*")
    assert json.loads(done.stdout) == {"event": "archived", "archive": str(archive)}
    assert archive.suffix == SUFFIX
    assert archive.stat().st_size > 10 << 20
    assert "cds" not in done.stderr


def test_a_class_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    jars, cache = tmp_path / "jars", tmp_path / "cache"
    jars.mkdir()
    (jars / "spark.jar").touch()
    archive = ClassArchive(tmp_path / "java", jars, (cache,))
    assert archive.options_to_use() == ""
    assert not archive.keep()
    option, _, place = archive.options_to_write().split()[0].partition("=")
    assert option == "-XX:ArchiveClassesAtExit"
    Path(place).write_bytes(b"classes")
    assert archive.options_to_use() == ""
    assert archive.keep()
    again = ClassArchive(tmp_path / "java", jars, (cache,))
    assert f"-XX:SharedArchiveFile={archive.path} " in again.options_to_use()
    (jars / "spark.jar").write_bytes(b"another version")
    newer = ClassArchive(tmp_path / "java", jars, (cache,))
    assert newer.options_to_use() == ""
    Path(newer.options_to_write().split()[0].partition("=")[2]).write_bytes(b"classes")
    assert newer.keep()
    assert list(cache.glob("*/*")) == [newer.path]  # the former version's is gone


def test_a_class_archive_is_neither_written_nor_used_where_others_can_write(tmp_path: Path) -> None:
    found = ClassArchive(tmp_path / "java", tmp_path, (tmp_path / "cache",)).path
    assert found is not None
    found.write_bytes(b"classes")
    found.parent.chmod(0o777)
    archive = ClassArchive(tmp_path / "java", tmp_path, (tmp_path / "cache",))
    assert archive.options_to_use() == archive.options_to_write() == ""
