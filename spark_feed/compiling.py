"""Compiles the loops of this package, and caches them on disk like the journal's."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from tandemfeed.journal.compiled.compiling import compile_into
from tandemfeed.journal.compiled.places import cache_places, kernel_folder


def compiler_for(*module_files: str) -> Callable[[object], Callable[[Callable[..., Any]], Any]]:
    """A decorator that compiles functions of a module for a signature, or loads them if they were compiled before.

    Args:
        module_files: of the module, and of those whose constants it compiles in; a change of them compiles again.
    """
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for each in module_files:
        digest.update(Path(each).read_bytes())
    folder = kernel_folder(digest.hexdigest()[:16], *cache_places())
    return lambda signature: lambda function: compile_into(folder, function, signature)
