"""The installed package: built as a wheel and installed into an environment outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandemfeed import __version__

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns(".*", "var", "build", "__pycache__", "*.egg-info", "tests", "docs")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel. It finds the dependencies in the environment of the tests."""

    wheel: Path
    prefix: Path

    @property
    def site_packages(self) -> Path:
        return next((self.prefix / "lib").glob("python*/site-packages"))

    def run(self, program: str, *arguments: str, folder: Path, status: int = 0) -> str:
        """Run a program of the environment outside the checkout; returns what it printed."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PATH"] = f"{self.prefix / 'bin'}:{environment['PATH']}"
        command = [str(self.prefix / "bin" / program), *arguments]
        ended = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert ended.returncode == status, ended.stdout
        return ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=NOT_SOURCE)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment", symlinks=True)
    made = Installed(wheel, folder / "environment")
    (made.site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    python = made.prefix / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    return made


def test_the_wheel_claims_no_other_name_than_tandemfeed(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"tandemfeed", f"tandemfeed-{__version__}.dist-info"}


def test_documents_and_examples_are_package_data(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    wanted = [
        f"tandemfeed/{path.relative_to(ROOT)}"
        for package in ("adapter", "deploy")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix in (".xml", ".xsd", ".toml", ".html", ".md")
    ]
    assert wanted
    assert not [name for name in wanted if name not in names]


def test_the_installed_package_gives_client_journal_and_version(installed: Installed, tmp_path: Path) -> None:
    code = (
        "import tandemfeed as tf; print(tf.__version__, tf.journal.Journal.__name__, tf.connect.__name__, tf.__file__)"
    )
    said = installed.run("python", "-c", code, folder=tmp_path).split()
    assert said[:3] == [__version__, "Journal", "connect"]
    assert Path(said[3]).is_relative_to(installed.prefix)
    assert installed.run("tandemfeed", "--version", folder=tmp_path) == f"tandemfeed {__version__}\n"
    assert "ModuleNotFoundError" in installed.run("python", "-c", "import adapter", folder=tmp_path, status=1)


def test_the_program_of_the_readme_has_types_outside_the_checkout(installed: Installed, tmp_path: Path) -> None:
    (program,) = re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "program.py").write_text(program + "    reveal_type(feed)\n")
    interpreter = str(installed.prefix / "bin" / "python")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", interpreter, "program.py"]
    checked = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert 'Revealed type is "tandemfeed.client_lib.client.Client"' in checked.stdout


@pytest.mark.parametrize(
    ("command", "module", "extra"), [("journal", "numba", "journal"), ("convert", "numba", "cluster")]
)
def test_a_command_whose_packages_are_missing_names_the_extra_to_install(
    installed: Installed, tmp_path: Path, command: str, module: str, extra: str
) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from tandemfeed.deploy.command import main; sys.exit(main([{command!r}, 'info', '.']))"
    )
    said = installed.run("python", "-c", code, folder=tmp_path, status=2)
    assert said.splitlines()[-1].endswith(f"which is not installed; run: pip install 'tandemfeed[{extra}]'")


CLIENT = ("subscribe", "snapshot", "replay", "losses", "contribute", "stubs", "completion")
WITHOUT_EXTRAS = f"""
import importlib.metadata, re, sys
needs = importlib.metadata.requires("tandemfeed")
of_extras = {{re.match(r"[\\w.-]+", each)[0].lower() for each in needs if "extra" in each}} - {{"tandemfeed"}}
for module, distributions in importlib.metadata.packages_distributions().items():
    if {{each.lower() for each in distributions}} & of_extras:
        sys.modules[module] = None
import tandemfeed
tandemfeed.connect("127.0.0.1:7400", ca=b"", identity="reader", secret="open sesame")
from tandemfeed.deploy.command import commands
for name in {CLIENT!r}:
    commands()[name].load()
"""


def test_the_package_without_extras_is_the_client(installed: Installed, tmp_path: Path) -> None:
    """The client and its commands import although what the other parts need is missing."""
    installed.run("python", "-c", WITHOUT_EXTRAS, folder=tmp_path)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_the_installed_demo_runs_outside_the_checkout_and_changes_nothing_in_the_package(
    installed: Installed, tmp_path: Path
) -> None:
    def files() -> set[Path]:
        return {path for path in installed.site_packages.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    installed.run("tandemfeed", "demo", "--seconds=6", "--rate=2000", folder=tmp_path)
    assert (tmp_path / "var" / "demo-report.html").is_file()
    assert files() == before
