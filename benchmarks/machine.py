"""Describes the machine that a benchmark runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, load, operating system, and the versions of Python and the relevant packages."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("numpy", "numba", "pyzmq", "cryptography")},
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }
