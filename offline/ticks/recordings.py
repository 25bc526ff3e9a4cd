"""Which files of a folder are read together: a recording is read by one task, in order, as one stream."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from tandemfeed.spark_feed.spark.errors import TableError

FOLDERS, FILES = "folder", "file"
UNITS = (FOLDERS, FILES)  # the option `recording`
HIDDEN = (".", "_")  # how the names of files begin that Spark's readers pass over, too
DAY = re.compile(r"(?<!\d)(\d{4})-?(\d{2})-?(\d{2})(?!\d)")


@dataclass(slots=True)
class Recording(InputPartition):
    """Files, each of which continues the one before it. Attributes: name: path of the folder or file."""

    name: str
    paths: tuple[Path, ...]

    def session(self, option: str) -> int:
        """The trading day: the option's, or with `path` the first day that the path contains.

        Raises:
            TableError: there is none.
        """
        if option != "path":
            return int(option or 0)
        for year, month, day in DAY.findall(str(self.paths[0])):
            try:
                return int(datetime.date(int(year), int(month), int(day)).strftime("%Y%m%d"))
            except ValueError:
                continue
        raise TableError(f"option 'session' is 'path', but {self.paths[0]} contains no day YYYYMMDD or YYYY-MM-DD")


def files_in(path: Path, pattern: str) -> list[Path]:
    """The files of a folder and of its subfolders, in order of their paths; or the one file that the path names.

    Args:
        pattern: of file names, such as `*.pcap`.

    Raises:
        TableError: there is no such file or folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TableError(f"{path} does not exist; give a file or a folder that every executor can read")
    return sorted(each for each in path.rglob("*") if _is_shown(each.relative_to(path), pattern) and each.is_file())


def recordings(files: Sequence[Path], unit: str) -> list[Recording]:
    """Files as recordings.

    Args:
        unit: FOLDERS: the files of a folder are one recording, in order of their names; FILES: each file is one.
    """
    if unit == FILES or len(files) == 1:
        return [Recording(str(file), (file,)) for file in files]
    by_folder = groupby(sorted(files, key=lambda file: (file.parent, file.name)), key=lambda file: file.parent)
    return [Recording(str(folder), tuple(found)) for folder, found in by_folder]


def _is_shown(relative: Path, pattern: str) -> bool:
    return fnmatch(relative.name, pattern) and not any(part.startswith(HIDDEN) for part in relative.parts)
