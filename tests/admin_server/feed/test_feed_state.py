"""The lock of a feed's state belongs to one object."""

from __future__ import annotations

import ast
from pathlib import Path

ADMIN_SERVER = Path(__file__).resolve().parents[3] / "admin_server"
LOCKS = {"Lock", "RLock", "Condition"}


def test_no_function_of_the_admin_server_receives_a_lock() -> None:
    receiving = [
        f"{path.name}:{function.lineno} {function.name}"
        for path in sorted(ADMIN_SERVER.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in (*function.args.args, *function.args.kwonlyargs)
        if each.annotation is not None and LOCKS & set(_names(each.annotation))
    ]
    assert not receiving


def _names(annotation: ast.expr) -> list[str]:
    return [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in ast.walk(annotation)]
