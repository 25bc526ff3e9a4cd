"""Completion: bash itself completes with the generated script."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from tandemfeed.deploy.command import main as tandemfeed
from tandemfeed.deploy.completion import completions

BY_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_tandemfeed
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "tandemfeed"
    path.write_text(printed("bash"))
    return path


def printed(shell: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert tandemfeed(["completion", shell]) == 0
    return output.getvalue()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["adm"], {"admin", "admin-server"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["admin", "dra"], {"drain"}),
        (["admin", "clients", ""], {"list", "kick", "--help"}),
        (["admin", "clients", "kick", "reader", "--rea"], {"--reason"}),
        (["admin", "policy", "explain", "--action", "adm"], {"administer"}),
        (["admin", "status", "--pro"], {"--profile"}),
        (["subscribe", "--sec"], {"--secret-file"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bash_completes(script: Path, line: list[str], expected: set[str]) -> None:
    command = ["bash", "-c", BY_BASH, "bash", str(script), "tandemfeed", *line]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(printed(shell))
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_every_command_is_completed() -> None:
    table = completions()
    assert {f" {name}" for name in table[""]} <= table.keys()
