"""Finds a Java installation that Spark can use, or says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

JAVA_VERSION_MIN = 17
USUAL_FOLDER = Path("/usr/lib/jvm")
NEEDED_MODULE = "jdk.incubator.vector"  # trimmed runtimes lack it, and Spark then fails while starting


class JavaMissing(Exception):
    """No usable Java; the text says what was found and what to install."""


def find_java_home(environment: Mapping[str, str] | None = None, usual_folder: Path = USUAL_FOLDER) -> Path:
    """The folder of a Java 17 or newer: from JAVA_HOME, from PATH, or from Debian's folder.

    Raises:
        JavaMissing: if there is none.
    """
    environment = os.environ if environment is None else environment
    refused: list[str] = []
    for home in _candidates(environment, usual_folder):
        reason = _refusal(home)
        if reason is None:
            return home
        refused.append(f"{home}: {reason}")
    found = "; ".join(refused) or f"none in JAVA_HOME, PATH or {usual_folder}"
    raise JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer; found: {found}. On Debian or Ubuntu, run "
        "apt-get install openjdk-17-jre-headless; elsewhere, install Java and set JAVA_HOME"
    )


def _candidates(environment: Mapping[str, str], usual_folder: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    named = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    usual = sorted(usual_folder.glob("*")) if usual_folder.is_dir() else []
    for home in (Path(named) if named else None, Path(on_path).resolve().parent.parent if on_path else None, *usual):
        if home is not None and (home / "bin" / "java").exists() and home.resolve() not in seen:
            seen.add(home.resolve())
            yield home.resolve()


def _refusal(home: Path) -> str | None:
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    found = re.search(r'JAVA_VERSION="?(?:1\.)?(\d+)', text) or re.search(
        r'version "(?:1\.)?(\d+)', _version_text(home)
    )
    if found is None:
        return "its version is unknown"
    if int(found.group(1)) < JAVA_VERSION_MIN:
        return f"version {found.group(1)} is too old"
    modules = re.search(r'MODULES="([^"]*)"', text)
    if modules is not None and NEEDED_MODULE not in modules.group(1).split():
        return f"a trimmed runtime without {NEEDED_MODULE}"
    return None


def _version_text(home: Path) -> str:
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr
