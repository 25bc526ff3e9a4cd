"""Spark's classes in a file that the JVM maps, so that it need not find, read and verify them at each start.

That halves the processor time until Spark is ready. The JVM can write such an archive when it ends (JEP 350);
`tandemfeed source-job --archive-classes` lets it, and `./run setup` and `./run demo` do so the first time. The archive
lies where compiled kernels do, and like them only if the folder is private to this user, because the JVM executes what
it contains. Without it, or with one that the JVM does not accept, Spark starts more slowly.

Invariant: an archive under its final name is whole, and belongs to one version of Java and Spark; an installation has
at most one archive, because each has 160 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from tandemfeed.journal.compiled.places import cache_places, private_file, private_folder

SUFFIX = ".jsa"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"  # what cannot be archived is only slower


class ClassArchive:
    """The archive for a Java and a Spark.

    Args:
        java_home, jars: their folders.
        places: where archives may be stored; the first is used that is private to this user.
    """

    def __init__(self, java_home: Path, jars: Path, places: tuple[Path, ...] | None = None) -> None:
        name = f"spark-classes-{_digest([os.fspath(java_home), os.fspath(jars)])}"
        folders = (place / name for place in (cache_places() if places is None else places))
        folder = next((folder for folder in folders if private_folder(folder)), None)
        self.path = None if folder is None else folder / f"{_version(java_home, jars)}{SUFFIX}"

    @property
    def _unfinished(self) -> Path | None:
        return self.path and self.path.with_name(f"{os.getpid()}.unfinished")

    def options_to_use(self) -> str:
        """Options that make a JVM use the archive, if it exists."""
        if self.path is None or not private_file(os.fspath(self.path)):
            return ""
        return f"-XX:SharedArchiveFile={self.path} {QUIET}"

    def options_to_write(self) -> str:
        """Options that make a JVM write the archive when it ends; empty if there is no place for it."""
        return "" if self.path is None else f"-XX:ArchiveClassesAtExit={self._unfinished} {QUIET}"

    def keep(self) -> bool:
        """Keep what the JVM has written, after it ended; False if it has written nothing."""
        if self.path is None or self._unfinished is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._unfinished.rename(self.path)
            for other in self.path.parent.iterdir():  # of former versions, or unfinished
                if other != self.path:  # a JVM that has mapped it keeps it
                    other.unlink(missing_ok=True)
            return True
        return False


def _version(java_home: Path, jars: Path) -> str:
    """Identifies what an archive is made from: it is only for the same JVM and the same jar files."""
    release = java_home / "release"
    parts = [release.read_text(errors="replace") if release.is_file() else ""]
    for jar in sorted(jars.glob("*.jar")):
        found = jar.stat()
        parts.append(f"{jar.name} {found.st_size} {found.st_mtime_ns}")
    return _digest(parts)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
