"""Parts of kernels have no machine code of their own; the functions that Python calls contain them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import int64

from tandemfeed.adapter import kernel_cache
from tandemfeed.adapter.kernel_cache import load_generated
from tandemfeed.journal.compiled.places import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[3]

NESTED = """
from numba import types
from tandemfeed.adapter.kernel_cache import compiled, compiled_part, kernel_part

@compiled_part
def least(value):
    return 100 // value

@kernel_part
def middle(value):
    return least(value) + 50

@compiled(types.int64(types.int64))
def kernel(value):
    return middle(value)
"""
# Parts of one module serve two generated kernels. Prints what numba compiled, the result, and what a part raised.
SHARED = """
import sys
from pathlib import Path
from numba.core.event import install_recorder
sys.path.insert(0, sys.argv[1])
from tandemfeed.adapter.kernel_cache import load_generated
source = '''
from numba import types
from tandemfeed.adapter.kernel_cache import compiled
from some_parts import divided

@compiled(types.int64(types.int64, types.int64))
def kernel(one, other):
    return divided(one, other) + NUMBER
'''.replace("NUMBER", sys.argv[2])
with install_recorder("numba:compile") as recorder:
    kernel = load_generated(source).kernel
print(*sorted(event.data["dispatcher"].py_func.__name__ for _, event in recorder.buffer if event.is_start))
print(kernel(100, 5))
for other in (0, -1):
    try:
        kernel(100, other)
    except (ZeroDivisionError, ValueError) as error:
        print(type(error).__name__, *error.args[1:])
"""
PARTS = """
from tandemfeed.adapter.kernel_cache import compiled_part

@compiled_part
def quotient(one, other):
    return one // other

@compiled_part
def divided(one, other):
    if other < 0:
        raise ValueError("below 0", other)
    return quotient(one, other)
"""
RAISED = ["ZeroDivisionError", "ValueError -1"]


def library_of(dispatcher: Any) -> Any:
    """The code of a function's only specialisation."""
    (result,) = dispatcher.overloads.values()
    return result.library


def test_only_the_function_that_python_calls_has_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "CACHE_FOLDER", tmp_path)
    module: Any = load_generated(NESTED)
    assert module.kernel(5) == 70
    assert library_of(module.kernel)._get_compiled_object()
    for part in (module.middle, module.least):
        assert not library_of(part)._object_caching_enabled
        assert library_of(part).get_pointer_to_function(part.overloads[int64,].fndesc.llvm_func_name) == 0
    with pytest.raises(ZeroDivisionError):
        module.kernel(0)


def run(cache: Path, modules: Path, number: int) -> list[str]:
    environment = {**os.environ, FOLDER_VARIABLE: str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SHARED, str(modules), str(number)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_a_part_in_the_cache_serves_another_kernel_in_another_process(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "some_parts.py").write_text(PARTS)
    assert run(cache, tmp_path, 1) == ["divided kernel quotient", "21", *RAISED]
    assert run(cache, tmp_path, 2) == ["kernel", "22", *RAISED]
    assert run(cache, tmp_path, 1) == ["", "21", *RAISED]


@pytest.mark.timeout(300)
def test_a_stored_part_that_others_could_have_written_is_compiled_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "some_parts.py").write_text(PARTS)
    run(cache, tmp_path, 1)
    entries = list(cache.glob("kernels-*/some_parts.divided-*.nbc"))
    assert entries
    for entry in entries:
        entry.chmod(0o666)
    assert run(cache, tmp_path, 2) == ["divided kernel", "22", *RAISED]
