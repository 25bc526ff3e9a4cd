"""The documentation builds as a site without a warning, and its reference has every public name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
PACKAGES = ("client_lib", "journal", "journal.persistent_queue", "journal.transactional", "journal.replication",
            "adapter.conversion")  # fmt: skip


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """So its navigation has every page, links lead somewhere, and docstrings name arguments and errors that exist."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "If nothing listens" in (tmp_path / "reference" / "client" / "index.html").read_text()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name(package: str) -> None:
    module = importlib.import_module(f"tandemfeed.{package}")
    public = set(module.__all__)
    described = set(re.findall(rf"^::: tandemfeed\.{re.escape(package)}\.(\w+)$", REFERENCE, re.M))
    assert described == public
    found = {name: getattr(module, name) for name in public}
    assert not [name for name, each in found.items() if callable(each) and not each.__doc__], "without a docstring"
