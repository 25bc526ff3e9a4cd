"""The Spark session that the source job uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_feed.source_material import ROOT

pytestmark = pytest.mark.processes
PROGRAM = """
import sys
from pathlib import Path
from tandemfeed.spark_feed.numbering.session import start_session

spark = start_session("local[1]", "512m", Path(sys.argv[1]))
print(spark.range(10).mapInArrow(lambda batches: batches, "id bigint").toArrow().num_rows)
spark.stop()
"""


def test_spark_does_not_warn_about_pandas_which_the_job_does_not_use(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "default", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["10"]
    assert "pandas" not in done.stderr
