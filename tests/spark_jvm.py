"""Spark's JVM in a process that runs several tests."""

from __future__ import annotations


def forget_ended_jvm() -> None:
    """Let the next session start a JVM if that of an earlier test has ended: pyspark would still connect to it."""
    from pyspark import SparkContext  # takes a second, so import it only here

    if (gateway := SparkContext._gateway) is not None and gateway.proc.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None
