"""A certificate has one purpose, and one that was issued for another is issued again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from tandemfeed.admin_server.records.authority import Authority
from tandemfeed.admin_server.records.state_folder import StateFolder
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.transport.calls.server_names import (
    ADMIN_SERVER,
    WrongCertificate,
    adapter_server,
    check_certificate,
    purpose_of,
    source_gateway,
)
from tests.admin_server.cluster_files import running_server

ADAPTER = adapter_server("equities", "a")


def issued(authority: Authority, folder: Path, identity: str, *server_names: str) -> bytes:
    path = folder / f"{identity}.crt"
    authority.issue(path, folder / f"{identity}.key", identity, server_names)
    return path.read_bytes()


def certificate_of(server: AdminServer, identity: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((server.folder.path / "certs" / f"{identity}.crt").read_bytes())


def test_the_admin_server_issues_each_identity_a_certificate_for_what_it_serves(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        found = {
            name: purpose_of(certificate_of(server, name)) for name in ("adapter-a", "source", "reader", "operator")
        }
    assert found == {
        "adapter-a": ({ADAPTER}, True),
        "source": ({source_gateway("equities")}, True),
        "reader": (set(), False),
        "operator": (set(), False),
    }


def test_an_identity_that_is_named_like_a_server_gets_no_servers_certificate(tmp_path: Path) -> None:
    pem = issued(Authority(tmp_path), tmp_path, ADMIN_SERVER)
    with pytest.raises(WrongCertificate, match="it names no server, and is not for servers"):
        check_certificate(pem, ADMIN_SERVER)


def test_a_certificate_is_kept_while_its_purpose_is_the_same_and_is_replaced_when_it_changes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = issued(authority, tmp_path, "adapter-a", ADAPTER)
    assert issued(Authority(tmp_path), tmp_path, "adapter-a", ADAPTER) == first
    second = issued(authority, tmp_path, "adapter-a", ADAPTER, adapter_server("bonds", "a"))
    check_certificate(second, ADAPTER)
    check_certificate(second, adapter_server("bonds", "a"))
    third = issued(authority, tmp_path, "adapter-a")
    assert purpose_of(x509.load_pem_x509_certificate(third)) == (frozenset(), False)


def test_a_certificate_of_another_authority_is_kept_and_checked(tmp_path: Path) -> None:
    StateFolder(tmp_path).close()
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    both = issued(other, tmp_path / "other", "both", ADMIN_SERVER, "admin.example.com")
    (tmp_path / "server.crt").write_bytes(both)
    StateFolder(tmp_path).close()
    assert (tmp_path / "server.crt").read_bytes() == both
    (tmp_path / "server.crt").write_bytes(issued(other, tmp_path / "other", "old", "admin.example.com"))
    with pytest.raises(WrongCertificate, match=r"it names admin\.example\.com"):
        StateFolder(tmp_path)


@pytest.mark.parametrize(
    ("names", "why"), [((), "it names no server, and is not for servers"), (("localhost",), "it names localhost.")]
)
def test_a_server_refuses_a_certificate_that_its_callers_would_refuse(
    tmp_path: Path, names: tuple[str, ...], why: str
) -> None:
    pem = issued(Authority(tmp_path), tmp_path, "adapter-a", *names)
    with pytest.raises(WrongCertificate, match=why) as refused:
        check_certificate(pem, ADAPTER)
    assert f"must name {ADAPTER}" in str(refused.value)
    assert "restart the admin server" in str(refused.value)


def test_a_certificate_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCertificate, match="cannot be read"):
        check_certificate(b"nonsense", ADAPTER)
    (tmp_path / "reader.crt").write_text("nonsense")
    (tmp_path / "reader.key").write_text("nonsense")
    with pytest.raises(OSError, match=r"reader.crt has no certificate in PEM format"):
        issued(Authority(tmp_path), tmp_path, "reader")
