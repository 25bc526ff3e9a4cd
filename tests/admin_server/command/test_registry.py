"""The registry of `tandemfeed admin`: which module adds which command."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module

import pytest

from tandemfeed.admin_server.command.registry import ROOMS, CommandAdder, add_commands
from tandemfeed.admin_server.command.server_calls import method_of
from tandemfeed.v1 import admin_pb2


def commands_of(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    (action,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return tuple(action.choices)


@pytest.mark.parametrize("module", ROOMS)
def test_a_module_adds_the_commands_that_the_registry_lists(module: str) -> None:
    parser = argparse.ArgumentParser()
    import_module(module).add_commands(CommandAdder(parser))
    assert commands_of(parser) == ROOMS[module]


def test_an_unknown_command_is_compared_with_all_commands() -> None:
    parser = argparse.ArgumentParser()
    add_commands(CommandAdder(parser), wanted="no-such-command")
    assert {"status", "failover", "policy"} <= set(commands_of(parser))


def test_a_requests_type_names_its_method() -> None:
    assert method_of(admin_pb2.ExplainPolicyRequest).full_name == "tandemfeed.v1.PolicyAdministration.ExplainPolicy"


def test_a_command_does_not_import_what_only_servers_and_adapters_need() -> None:
    heavy = {"numpy", "numba", "pyarrow", "zmq", "prometheus_client", "msgspec", "kazoo", "rich", "pyspark", "psutil"}
    code = (
        "import sys; from tandemfeed.admin_server.command.admin_command import main\n"
        "try: main(['status', '--admin', 'x:1', '--profile', 'none'])\n"
        f"except SystemExit: print(sorted({heavy!r} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
