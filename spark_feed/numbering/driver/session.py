"""A Spark session for fast micro-batches: no web UI, and on one machine no traffic off this host."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any, TypeAlias

from tandemfeed.runtime.threads import start_thread
from tandemfeed.spark_feed.numbering.driver.class_archive import ClassArchive
from tandemfeed.spark_feed.numbering.driver.java import find_java_home
from tandemfeed.spark_feed.numbering.tasks.pool import TASK_TRIES
from tandemfeed.spark_feed.sharing import spark_settings

LOG = logging.getLogger(__name__)
Spark: TypeAlias = Any  # pyspark is not typed for mypy

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.maxPartitionBytes": "1g",
    # Never start a job just to list files: it would wait for a core while the source job's own tasks have them all.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "2ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.streaming.metricsEnabled": "false",
    # The default manager calls a shell for permissions several times per micro-batch and takes 100 ms instead of 25 ms.
    # Both write a new file and rename it, which is atomic on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.structuredLogging.enabled": "true",
    "spark.log.level": "WARN",
    # Spark moves names of files and a few large blocks, so no expression here is worth compiling (numpy and compiled
    # kernels do the work).
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Blocks pass from one task to another on the same machine, and are not worth compressing.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.broadcast.compress": "false",
}
# Parallel collectors and the second compiler start more threads than two cores can run.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"

# Where all of Spark runs on this machine. On a cluster, executors must reach the driver, so its own settings decide.
ONE_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # in the environment of a program that spark-submit runs


def scratch_of(checkpoint: Path) -> Path:
    """Where Spark keeps temporary files on one machine."""
    return checkpoint.parent / "spark-scratch"


def retrying(master: str) -> str:
    """A local master that runs a failed task again, as clusters do; others are unchanged."""
    return re.sub(r"^local\[([^],]+)\]$", rf"local[\1,{TASK_TRIES}]", master)


def class_archive() -> ClassArchive:
    """The archive of Spark's classes for this Java and this Spark.

    Raises:
        JavaMissing: if no usable Java is installed.
    """
    from pyspark.find_spark_home import _find_spark_home

    return ClassArchive(find_java_home(), Path(_find_spark_home()) / "jars")


def launch_jvm(master: str, driver_memory: str, scratch: Path) -> None:
    """Launch the JVM of `start_session`, and return: it takes seconds to start, in which the job can be imported.

    What cannot be started, `start_session` starts again, and says what is wrong.
    """
    with contextlib.suppress(Exception):
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setAll(list(_prepare(master, driver_memory, scratch, None).items()))
        start_thread(lambda: SparkContext._ensure_initialized(conf=conf), "await-jvm", _on_launch_failed)


def _on_launch_failed(_name: str, failure: BaseException) -> None:
    LOG.debug("the JVM did not start; starting it again with the session", exc_info=failure)


def start_session(
    master: str, driver_memory: str, scratch: Path, archive_options: str | None = None, jars: str = ""
) -> Spark:
    """Start the Spark driver in this process, and its JVM unless it runs, or spark-submit has started one.

    Args:
        master: of Spark; empty: the one that spark-submit was given, or this machine with one core.
        archive_options: of the JVM; None: those with which it uses the archive of classes.
        jars: further jars, such as a connector's, separated by commas.

    Raises:
        JavaMissing: if no usable Java is installed.
    """
    settings = _prepare(master, driver_memory, scratch, archive_options) | ({"spark.jars": jars} if jars else {})
    # Spark 4.3 warns at each use that it does not support pandas 3 fully. No tick passes through pandas here, only
    # through Arrow. So the versions of pandas are not restricted for everything else in the environment.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession  # takes a second, so import it only here

    builder = SparkSession.builder.appName("tandemfeed source")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _prepare(master: str, driver_memory: str, scratch: Path, archive_options: str | None) -> dict[str, str]:
    """Prepare the environment of the JVM and of Python workers; returns Spark's settings."""
    if not master and SUBMITTED not in os.environ:
        master = "local[1]"
    os.environ["JAVA_HOME"] = str(find_java_home())
    is_local = master.startswith("local")
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors may have it elsewhere
    archive_options = class_archive().options_to_use() if archive_options is None else archive_options
    settings = SETTINGS | {"spark.driver.memory": driver_memory, "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    settings |= spark_settings()
    settings |= {"spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {archive_options}"}
    if is_local:
        settings |= ONE_MACHINE | {"spark.local.dir": str(scratch)}
    return settings | ({"spark.master": retrying(master)} if master else {})
