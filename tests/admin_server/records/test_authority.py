"""A certificate has one purpose, and one that was issued for another is issued again."""

from __future__ import annotations

import datetime
import random
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tandemfeed.admin_server.records.authority import Authority, Revocation
from tandemfeed.admin_server.records.state_folder import CLUSTER_KEY_SIZE, StateFolder
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
from tests.losing_disk import FailsAt, losing_disk

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


def test_a_revocation_list_has_each_certificate_with_the_second_in_which_it_was_revoked(tmp_path: Path) -> None:
    authority, at = Authority(tmp_path), datetime.datetime(2026, 11, 28, 12, 30, 59, tzinfo=datetime.UTC)
    at_unix_ns = int(at.timestamp()) * 1_000_000_000 + 999_999_999
    revoked = [Revocation(7, at_unix_ns), Revocation(1 << 100, at_unix_ns + 1)]
    found = x509.load_pem_x509_crl(authority.revocation_list(revoked))
    second = datetime.timedelta(seconds=1)
    assert [(each.serial_number, each.revocation_date_utc) for each in found] == [(7, at), (1 << 100, at + second)]


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


def fits(certificate: Path, key: Path) -> bool:
    """Whether a certificate is of a key."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return found == private.public_key()


def check_folder(path: Path) -> None:
    """Start on a folder, and check that everything in it fits together."""
    folder = StateFolder(path)
    folder.close()
    assert fits(path / "ca.pem", path / "ca.key")
    assert fits(path / "server.crt", path / "server.key")
    check_certificate((path / "server.crt").read_bytes(), ADMIN_SERVER)
    assert len(folder.cluster_key) == CLUSTER_KEY_SIZE
    assert not [each for each in path.rglob("*") if each.name.endswith(".draft")]


@pytest.mark.parametrize("operation", ["write", "flush", "rename", "flush_folder"])
def test_a_first_start_that_fails_or_loses_its_power_at_any_point_is_continued_by_the_next(
    tmp_path: Path, operation: str
) -> None:
    for first in range(1, 100):
        (place := tmp_path / str(first)).mkdir()
        root, chance = place / "root", random.Random(first)
        root.mkdir()
        fails = FailsAt(first, operations=(operation,))
        with losing_disk(root, place / "kept", fails) as disk:
            with suppress(OSError):
                StateFolder(root / "state").close()
            images = [disk.image(place / f"image-{which}", luck) for which, luck in enumerate((None, chance, chance))]
        for each in (root, *images):
            check_folder(each / "state")
        if not fails.failed:
            return
    raise AssertionError("the calls do not end")


def test_what_a_first_start_has_made_is_there_after_a_power_failure(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with losing_disk(root, tmp_path / "kept") as disk:
        folder = StateFolder(root / "state")
        folder.make_secret("reader")
        (root / "state" / "credentials.json").write_text("{}")
        folder.note_imported()
        folder.close()
        image = disk.image(tmp_path / "image")
    names = ("ca.pem", "ca.key", "cluster.key", "server.crt", "server.key", "secrets/reader.secret")
    for name in names:
        assert (image / "state" / name).read_bytes() == (root / "state" / name).read_bytes()
        assert (root / "state" / name).stat().st_mode & 0o777 == 0o600
    assert (image / "state" / "credentials.json.imported").exists()
    assert not (image / "state" / "credentials.json").exists()
