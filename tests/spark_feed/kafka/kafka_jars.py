"""The jars of Kafka's broker and of Spark's connector to it, which no Python or Debian package brings.

`python -m tests.spark_feed.kafka.kafka_jars` has Spark resolve and download them, once for each set of versions;
`./run test --all` does this before the tests begin, because these run without a network. Without the jars, the tests
that need them are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[3]
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"  # docs/spark.md names this version
BROKER = "org.apache.kafka:kafka_2.13:3.9.2"  # the version of the connector's own client
IN_SPARK_ALREADY = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
FOLDER = ROOT / "var" / "kafka" / f"{CONNECTOR.split(':')[-1]}-{BROKER.split(':')[-1]}"
OF_THE_CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
TIMEOUT_S = 180

needs_kafka = pytest.mark.skipif(
    not FOLDER.is_dir() or shutil.which("java") is None,
    reason="needs the jars of Kafka (./run test --all downloads them, where there is a registry of Maven packages)",
)


def connector_jars() -> str:
    """The connector's jars, as `spark.jars` takes them."""
    jars = sorted((FOLDER / "jars").glob("*.jar"))
    return ",".join(str(jar) for jar in jars if any(part in jar.name for part in OF_THE_CONNECTOR))


def broker_class_path() -> str:
    """The class path of a broker: its jars, and of Spark's the library of Scala, which Spark leaves out of packages."""
    sparks = Path(pyspark.__file__).parent / "jars"
    return os.pathsep.join(map(str, [FOLDER / "jars" / "*", *sparks.glob("scala-library-*.jar")]))


def download() -> None:
    """Download the jars unless they are here.

    Raises:
        subprocess.SubprocessError: if Spark could not resolve or download them.
    """
    if FOLDER.is_dir():
        return
    shutil.rmtree(part := FOLDER.with_name("part"), ignore_errors=True)
    part.mkdir(parents=True)
    (nothing := part / "nothing.py").write_text("")  # the program that Spark runs when it has the packages
    settings = {"spark.jars.ivy": str(part), "spark.ui.enabled": "false"}
    submit = Path(sys.executable).parent / "spark-submit"
    command = [str(submit), "--packages", f"{CONNECTOR},{BROKER}"]
    command += ["--exclude-packages", ",".join(IN_SPARK_ALREADY)]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    subprocess.run([*command, str(nothing)], check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    shutil.rmtree(part / "cache")  # where they were downloaded to
    part.rename(FOLDER)


if __name__ == "__main__":
    try:
        download()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"the jars of Kafka could not be downloaded: {error}")
