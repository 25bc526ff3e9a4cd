"""What a process logs in with: options, files, and what is passed on to its lifeline."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tandemfeed.admin_server.records.authority import Authority
from tandemfeed.transport.calls.credentials import (
    CertificateFiles,
    Credential,
    CredentialUnusable,
    SecretFile,
    TokenFile,
    from_words,
    read_text,
    to_words,
)
from tandemfeed.transport.process_shell import Connection, add_connection_arguments, connection_from


def connection_of(folder: Path, *options: str) -> Connection:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    arguments = parser.parse_args(["--admin", "127.0.0.1:1", "--ca", str(folder / "ca.pem"), *options])
    return connection_from(parser, arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "reader.crt", tmp_path / "reader.key", "reader", ())
    authority.issue(tmp_path / "server.crt", tmp_path / "server.key", "server", ("a.example.com",))
    (tmp_path / "secret").write_text("hunter2\n")
    (tmp_path / "empty").write_text("\r\n")
    return tmp_path


def test_the_options_give_one_credential(folder: Path) -> None:
    secret = connection_of(folder, "--identity", "reader", "--secret-file", str(folder / "secret"))
    assert (secret.identity, secret.credential) == ("reader", SecretFile(folder / "secret"))
    assert "hunter2" not in repr(secret)
    token = connection_of(folder, "--token-file", str(folder / "secret"))
    assert (token.identity, token.credential) == ("", TokenFile(folder / "secret"))
    files = ["--certificate-file", str(folder / "reader.crt"), "--key-file", str(folder / "reader.key")]
    certificate = connection_of(folder, *files)
    assert certificate.identity == "reader"
    assert certificate.credential == CertificateFiles(folder / "reader.crt", folder / "reader.key")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("", "give one of --secret-file, --certificate-file and --token-file"),
        ("--secret-file secret", "--secret-file needs --identity"),
        ("--identity a --secret-file secret --token-file secret", "give one of"),
        ("--certificate-file reader.crt", "--certificate-file and --key-file need each other"),
        ("--token-file secret --key-file reader.key", "--certificate-file and --key-file need each other"),
        ("--identity a --secret-file missing", "cannot read missing: no such file or directory"),
        ("--identity a --secret-file empty", "empty is empty"),
        ("--certificate-file server.crt --key-file server.key", "server.crt is not a client's certificate"),
        ("--certificate-file secret --key-file reader.key", "secret has no certificate in PEM format"),
        ("--identity a --certificate-file reader.crt --key-file reader.key", "--certificate-file is that of reader"),
    ],
)
def test_a_mistake_in_the_options_is_named(
    folder: Path, options: str, complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match="2"):
        connection_of(folder, *options.split())
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n", b"\n\n"])
def test_the_end_of_the_line_does_not_belong_to_a_secret(tmp_path: Path, ending: bytes) -> None:
    (tmp_path / "secret").write_bytes("pass phrase ä".encode() + ending)
    assert read_text(tmp_path / "secret") == "pass phrase ä"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    with pytest.raises(CredentialUnusable, match="is not text in UTF-8"):
        read_text(tmp_path / "secret")


@pytest.mark.parametrize(
    "credential",
    ["hunter2", SecretFile(Path("a")), TokenFile(Path("b")), CertificateFiles(Path("c"), Path("d"))],
    ids=lambda credential: type(credential).__name__,
)
def test_a_lifeline_gets_the_credential_of_its_adapter(credential: Credential) -> None:
    assert from_words(to_words(credential)) == credential
