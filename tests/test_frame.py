"""Checks of the whole project: file sizes, names, generated code, commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tandemfeed.deploy.command import SUMMARIES, commands, main
from tandemfeed.deploy.contracts import PROTO_ROOT, generate

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 500  # a longer file is probably more than one idea; a class that is one idea stays in one file
# file -> why it is longer
LONGER: dict[str, str] = {
    "adapter/records/output_journal.py": "one class: the journal of one adapter, written, flushed and read for replays",
    "admin_server/feed/feed_state.py": "one class: the steps under the one lock of a feed",
    "feedcore/replica/engine.py": "one class: every event of an adapter, and what each passes on",
}
PACKAGES = (
    "feedcore",
    "tables",
    "transport",
    "journal",
    "adapter",
    "admin_server",
    "client_lib",
    "spark_feed",
    "offline",
    "deploy",
    "benchmarks",
)


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_file_is_longer_than_the_limit_without_a_reason() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts  # earlier versions kept generated kernels there
        and (count := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert set(long) <= set(LONGER), long


def test_every_module_starts_with_a_docstring() -> None:
    undocumented = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.read_text().startswith('"""')
    ]
    assert not undocumented


def test_no_file_has_a_meaningless_name_or_contains_a_path_of_one_machine() -> None:
    home = re.compile(
        r"/(home|root|work)/|https?://(?!fixprotocol\.io|www\.w3\.org|www\.apache\.org|[\w.]*example\.com)[a-z]"
    )
    wrong = []
    for path in tracked_files():
        if path.name in ("utils.py", "helpers.py", "misc.py"):
            wrong.append(f"{path}: name it for what it does")
        if path.suffix in (".py", ".md", ".toml", ".xml", ".lock", ".proto") and path.name not in ("test_frame.py",):
            wrong += [
                f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
                for number, line in enumerate(path.read_text().splitlines(), 1)
                if home.search(line)
            ]
    assert not wrong


def test_the_generated_code_matches_the_proto_files(tmp_path: Path) -> None:
    for path in generate(tmp_path):
        assert (tmp_path / path).read_text() == (PROTO_ROOT / path).read_text(), f"{path}: run ./run contracts"


def test_every_command_is_listed_with_a_summary_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(commands()) == set(SUMMARIES)
    assert main(["--help"]) == 0
    listing = capsys.readouterr().out
    for name in SUMMARIES:
        assert name in listing
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert "usage" in capsys.readouterr().out


def test_no_command_accepts_abbreviated_options_because_a_later_option_would_change_their_meaning() -> None:
    lenient = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("ArgumentParser", "add_parser")
        and "allow_abbrev" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not lenient


def test_an_unknown_command_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscrbe"]) == 2
    assert "did you mean 'subscribe'" in capsys.readouterr().err


def test_listing_the_commands_imports_no_component() -> None:
    code = "import sys; from tandemfeed.deploy.command import main; main(['--help']); print(sorted(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for package in ("adapter", "admin_server", "client_lib", "spark_feed", "pyspark", "grpc"):
        assert f"'{package}'" not in listed


def test_no_two_test_modules_have_the_same_name() -> None:
    """pytest imports them by name alone: the second of two would not be collected, although each runs by itself."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
