"""The file of outside issuers, and where their keys come from."""

from __future__ import annotations

import errno
import http.server
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tandemfeed.admin_server.identity import issuer_keys
from tandemfeed.admin_server.identity.issuer_keys import KeyFile, KeysPending, KeysUnusable, KeyUrl, read_keys
from tandemfeed.admin_server.identity.issuers import Issuers
from tandemfeed.runtime.threads import failed_threads
from tandemfeed.transport.settings_file import SettingsError
from tests.admin_server.conftest import EndedProcess
from tests.admin_server.identity.logins import ToyIssuer
from tests.client_lib.toy_cluster import make_certificates

HOST = "localhost"
GOOD = '[[issuer]]\nissuer = "https://a.example.com"\naudience = "us"\nkeys = "keys.json"\nalgorithms = ["ES256"]\n'


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('["ES256"]', '["none"]', 'line 5: issuer[0].algorithms[0] is "none"; it must be'),
        ('["ES256"]', '["HS256"]', 'line 5: issuer[0].algorithms[0] is "HS256"; it must be'),
        ('["ES256"]', "[]", "line 5: issuer[0].algorithms"),
        ('audience = "us"\n', "", "issuer[0].audience is missing"),
        ('audience = "us"', 'audience = ""', "line 3: issuer[0].audience"),
        (
            '"keys.json"',
            '"http://a.example.com/keys"',
            'line 4: issuer[0].keys is "http://a.example.com/keys"; it must be the path of a file, or',
        ),
        ('"keys.json"', '"missing.json"', 'line 4: issuer[0].keys is "missing.json":'),
        ("algorithms", 'keys_ca = "ca.pem"\nalgorithms', "line 5: issuer[0].keys_ca is set, but keys is a file"),
        ("algorithms", 'prefix = "x"\nidentities = { a = "b" }\nalgorithms', "line 5: issuer[0].prefix is set, but"),
        ("algorithms", "leeway_s = 3600\nalgorithms", "line 5: issuer[0].leeway_s is 3600; it must be"),
        ("[[issuer]]", GOOD + "[[issuer]]", 'issuer[1].issuer is "https://a.example.com", like that of issuer[0]'),
        ("algorithms", "algorithm = 1\nalgorithms", "line 5: issuer[0].algorithm is not a known key; did you mean"),
    ],
)
def test_a_mistake_in_the_file_is_refused_with_its_line_and_key(tmp_path: Path, old: str, new: str, error: str) -> None:
    ToyIssuer(tmp_path)
    path = tmp_path / "issuers.toml"
    path.write_text(GOOD)
    assert Issuers(path)
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(SettingsError) as refused:
        Issuers(path)
    assert error in str(refused.value)


def jwk(key: Any, **members: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if isinstance(key, (rsa.RSAPublicKey, rsa.RSAPrivateKey)) else ECAlgorithm
    row: dict[str, Any] = kind.to_jwk(key, as_dict=True)
    return {**row, **members}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "it is not a JWKS"),
        (b"[]", "it is not a JWKS"),
        (b'{"keys": []}', "it has no RSA, EC or Ed25519 key"),
        (json.dumps({"keys": [{"kty": "oct", "k": "AAAA"}]}).encode(), "it has no RSA, EC or Ed25519 key"),
        (
            json.dumps({"keys": [jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), use="enc")]}).encode(),
            "it has no RSA, EC or Ed25519 key for signatures",
        ),
        (json.dumps({"keys": [jwk(ec.generate_private_key(ec.SECP256R1()))]}).encode(), "it contains a private key"),
        (json.dumps({"keys": [jwk(rsa.generate_private_key(65_537, 1_024).public_key())]}).encode(), "of 1024 bits"),
        (b'{"keys": [' + b" " * (257 << 10) + b"]}", "it is longer than"),
    ],
)
def test_a_document_without_usable_keys_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(KeysUnusable, match=why):
        read_keys(document)


class KeyServer:
    """An https server with a JWKS."""

    def __init__(self, folder: Path) -> None:
        self.issuer = ToyIssuer(folder / "issuer")
        ca, certificate, key = make_certificates(HOST)
        for name, pem in (("ca.pem", ca), ("crt.pem", certificate), ("key.pem", key)):
            (folder / name).write_bytes(pem)
        self.ca, self.requests, self.redirects_to, self.garbage = folder / "ca.pem", 0, "", b""
        self.drip: Callable[[Any], None] = lambda _file: None
        self.may_answer = threading.Event()
        self.may_answer.set()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests += 1
                owner.may_answer.wait(20)
                if owner.garbage:
                    self.wfile.write(owner.garbage)
                    return
                self.send_response(302 if owner.redirects_to else 200)
                if owner.redirects_to:
                    self.send_header("Location", owner.redirects_to)
                self.end_headers()
                owner.drip(self.wfile)
                self.wfile.write(owner.issuer.keys_file.read_bytes())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "crt.pem", folder / "key.pem")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{HOST}:{self._server.server_address[1]}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def key_server(tmp_path: Path) -> Iterator[KeyServer]:
    server = KeyServer(tmp_path)
    yield server
    server.close()


def test_keys_are_fetched_when_needed_and_again_for_an_unknown_one_within_a_limit(
    key_server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    keys = KeyUrl(key_server.url, key_server.ca)
    assert keys.find("first", "ES256") is not None
    for _ in range(100):
        assert keys.find("unknown", "ES256") is None
    assert keys.find("first", "RS256") is None
    assert key_server.requests == 1
    key_server.issuer.rotate("second")
    monkeypatch.setattr(issuer_keys, "ASK_INTERVAL_S", 0)
    assert keys.find("second", "ES256") is not None
    assert keys.find("first", "ES256") is None


def test_a_slow_issuer_holds_up_one_login_at_a_time(key_server: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    key_server.may_answer.clear()
    keys = KeyUrl(key_server.url, key_server.ca)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(keys.find("first", "ES256")))
    waiting.start()
    while not keys._waiting.locked():
        pass
    with pytest.raises(KeysPending):
        keys.find("first", "ES256")
    key_server.may_answer.set()
    waiting.join()
    assert found[0] is not None


def test_keys_stay_while_the_issuer_is_away_but_not_for_ever(
    key_server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    keys = KeyUrl(key_server.url, key_server.ca)
    assert keys.find("first", "ES256") is not None
    key_server.close()
    monkeypatch.setattr(issuer_keys, "REFRESH_AFTER_S", 0)
    monkeypatch.setattr(issuer_keys, "ASK_INTERVAL_S", 0)
    assert keys.find("first", "ES256") is not None
    monkeypatch.setattr(issuer_keys, "USABLE_S", 0)
    assert keys.find("first", "ES256") is None


def test_keys_come_from_no_server_of_another_authority_and_no_other_address(
    key_server: KeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    assert KeyUrl(key_server.url, None).find("first", "ES256") is None
    (tmp_path / "other.pem").write_bytes(make_certificates(HOST)[0])
    assert KeyUrl(key_server.url, tmp_path / "other.pem").find("first", "ES256") is None
    key_server.redirects_to = "http://127.0.0.1:9/keys"
    assert KeyUrl(key_server.url, key_server.ca).find("first", "ES256") is None


@pytest.mark.parametrize("garbage", [b"not http\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: x\r\n\r\n{}"])
def test_an_issuer_that_answers_nonsense_twice_is_asked_a_third_time(
    key_server: KeyServer, monkeypatch: pytest.MonkeyPatch, ended_process: EndedProcess, garbage: bytes
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    monkeypatch.setattr(issuer_keys, "ASK_INTERVAL_S", 0)
    key_server.garbage = garbage
    keys = KeyUrl(key_server.url, key_server.ca)
    for _ in range(2):
        assert keys.find("first", "ES256") is None
    key_server.garbage = b""
    assert keys.find("first", "ES256") is not None
    assert not failed_threads(), "an issuer's errors are not this server's"


def test_an_error_of_this_server_while_it_asks_makes_it_unhealthy_and_holds_up_no_login(
    key_server: KeyServer, monkeypatch: pytest.MonkeyPatch, ended_process: EndedProcess
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    monkeypatch.setattr(issuer_keys, "ASK_INTERVAL_S", 0)
    keys, read = KeyUrl(key_server.url, key_server.ca), issuer_keys.read_keys

    def fail(_document: bytes) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(issuer_keys, "read_keys", fail)
    for _ in range(2):
        assert keys.find("first", "ES256") is None
    assert list(failed_threads()) == ["issuer keys"]
    monkeypatch.setattr(issuer_keys, "read_keys", read)
    assert keys.find("first", "ES256") is not None


def test_an_issuer_that_never_ends_its_answer_is_given_up_and_asked_by_one_thread(
    key_server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("WAIT_S", 0.01), ("ASK_INTERVAL_S", 0), ("ASK_TIMEOUT_S", 0.3)):
        monkeypatch.setattr(issuer_keys, name, seconds)
    ended = threading.Event()

    def drip(file: Any) -> None:
        try:
            while True:
                file.write(b" ")
                file.flush()
                time.sleep(0.01)
        except OSError:
            ended.set()

    key_server.drip = drip
    keys = KeyUrl(key_server.url, key_server.ca)
    while not ended.is_set():
        with suppress(KeysPending):
            keys.find("first", "ES256")
        assert len([each for each in threading.enumerate() if each.name == "issuer keys"]) <= 1
    while keys._is_asking:
        time.sleep(0.01)
    key_server.drip = lambda _file: None
    monkeypatch.setattr(issuer_keys, "WAIT_S", 20)
    monkeypatch.setattr(issuer_keys, "ASK_TIMEOUT_S", 20)
    assert keys.find("first", "ES256") is not None


def test_a_file_that_could_not_be_read_once_is_read_at_the_next_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = ToyIssuer(tmp_path)
    keys = KeyFile(issuer.keys_file)
    issuer.rotate("second")
    read = Path.read_bytes

    def fail(_path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert keys.find("second", "ES256") is None
    monkeypatch.setattr(Path, "read_bytes", read)
    assert keys.find("second", "ES256") is not None
