"""Where the options of a connection come from, and how errors name the place."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.process_shell import (
    Connection,
    add_connection_arguments,
    add_login_arguments,
    connection_from,
)

PROFILES = """
default = "production"
[profile.production]
admin = "admin-1:7400,admin-2:7400"
ca = "ca.pem"
identity = "operator"
secret_file = "operator.secret"
[profile.lab]
admin = "lab:7400"
ca = "ca.pem"
identity = "tester"
secret_file = "operator.secret"
"""
Connect = Callable[..., Connection]


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Parses a command line, with the profiles above."""
    (tmp_path / "ca.pem").write_text("certificate")
    (tmp_path / "operator.secret").write_text("open sesame\n")
    (tmp_path / "profiles.toml").write_text(PROFILES)
    monkeypatch.setenv("TANDEMFEED_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.chdir("/")  # paths in a profile do not depend on the working folder

    def parse(*words: str) -> Connection:
        parser = argparse.ArgumentParser()
        add_connection_arguments(parser)
        return connection_from(parser, parser.parse_args(words))

    return parse


def test_the_default_profile_needs_no_flag(connect: Connect) -> None:
    connection = connect()
    assert connection.credential.read() == "open sesame"
    expected = Connection("admin-1:7400,admin-2:7400", b"certificate", "operator", connection.credential)
    assert connection == expected
    assert connection.multicast == Multicast("127.0.0.1", "zeromq")


def test_the_sockets_that_multicast_come_from_a_flag_the_environment_or_a_profile(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connect("--datagrams", "udp").multicast.datagrams == "udp"
    (tmp_path / "profiles.toml").write_text(PROFILES.replace("[profile.lab]", 'datagrams = "udp"\n[profile.lab]'))
    assert connect().multicast.datagrams == "udp"
    monkeypatch.setenv("TANDEMFEED_DATAGRAMS", "zeromq")
    assert connect().multicast.datagrams == "zeromq"
    monkeypatch.setenv("TANDEMFEED_DATAGRAMS", "pgm")
    with pytest.raises(SystemExit):
        connect()
    assert "datagrams from TANDEMFEED_DATAGRAMS: 'pgm' is neither zeromq nor udp" in capsys.readouterr().err


def test_a_flag_goes_before_the_environment_and_the_environment_before_a_profile(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect("--profile", "lab").identity == "tester"
    monkeypatch.setenv("TANDEMFEED_PROFILE", "lab")
    assert connect().admin == "lab:7400"
    monkeypatch.setenv("TANDEMFEED_IDENTITY", "from-environment")
    assert connect().identity == "from-environment"
    assert connect("--identity", "from-flag").identity == "from-flag"


@pytest.mark.parametrize(
    "flags",
    [("--identity", "other", "--secret-file", "other.secret"), ("--token-file", "other.secret")],
    ids=["secret", "token"],
)
def test_a_way_to_log_in_on_the_command_line_replaces_that_of_the_profile(
    connect: Connect, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "other.secret").write_text("another one\n")
    connection = connect(*(flag.replace("other.secret", str(tmp_path / "other.secret")) for flag in flags))
    assert (connection.admin, connection.credential.read()) == ("admin-1:7400,admin-2:7400", "another one")


def test_the_file_is_looked_for_in_the_users_configuration(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANDEMFEED_PROFILES")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "tandemfeed").mkdir(parents=True)
    text = PROFILES.replace('"ca.pem"', f'"{tmp_path}/ca.pem"').replace('"operator.s', f'"{tmp_path}/operator.s')
    (tmp_path / "config" / "tandemfeed" / "profiles.toml").write_text(text)
    assert connect().identity == "operator"


def test_without_any_profile_an_error_says_how_to_give_a_value(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TANDEMFEED_PROFILES")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit):
        connect()
    complaint = capsys.readouterr().err
    assert "--admin is missing: give it, set TANDEMFEED_ADMIN, or set admin in a profile" in complaint
    assert f"({tmp_path}/nowhere/tandemfeed/profiles.toml)" in complaint


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("admin-1:7400,", "nonsense,"), "admin from profile production in {file}: 'nonsense' is not HOST:PORT"),
        (
            ('identity = "operator"', 'user = "operator"'),
            "production.user is unknown; a profile may have admin",
        ),
        (('default = "production"', 'default = "none"'), "{file} has no profile 'none'; it has production, lab"),
        (('default = "production"', 'normal = "x"'), "{file}: 'normal' is unknown; it may have default and [profile"),
        (('"ca.pem"', '"missing.pem"'), "missing.pem (from profile production in {file}): No such file"),
        (("[profile.lab]", "[profile.lab"), "{file}: Expected ']'"),
    ],
)
def test_an_error_names_the_file_and_what_is_wrong(
    connect: Connect, tmp_path: Path, change: tuple[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(PROFILES.replace(*change, 1))
    with pytest.raises(SystemExit):
        connect()
    assert complaint.format(file=file) in capsys.readouterr().err


def test_a_wrong_environment_variable_is_named(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEMFEED_ADMIN", "nonsense")
    with pytest.raises(SystemExit):
        connect()
    assert "admin from TANDEMFEED_ADMIN: 'nonsense' is not HOST:PORT" in capsys.readouterr().err


def test_a_named_file_must_exist(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEMFEED_PROFILES", str(tmp_path / "none.toml"))
    with pytest.raises(SystemExit):
        connect()
    assert f"there is no file {tmp_path}/none.toml; write it, or set TANDEMFEED_PROFILES" in capsys.readouterr().err


def test_a_command_that_does_not_multicast_ignores_how_a_profile_multicasts(connect: Connect, tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(PROFILES.replace("[profile.lab]", 'interface = "127.0.0.1"\ndatagrams = "udp"\n[profile.lab]'))
    parser = argparse.ArgumentParser()
    add_login_arguments(parser)
    assert connection_from(parser, parser.parse_args([])) == replace(connect(), multicast=Multicast())
