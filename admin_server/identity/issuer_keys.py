"""The public keys of an issuer: a JWKS (RFC 7517) in a file, or at an https URL.

A file is read again when it changes. A URL is asked by one thread at a time, at most every half minute, however many
tokens name an unknown key; a login waits for the answer for a moment, and only one at a time.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Protocol

from cryptography.hazmat.primitives.asymmetric import rsa
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.admin_server.identity")
_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {  # type of key -> how it is read, algorithms that it serves
    "RSA": (RSAAlgorithm, ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
    "EC": (ECAlgorithm, ("ES256", "ES384", "ES512")),
    "OKP": (OKPAlgorithm, ("EdDSA",)),
}
RSA_KEY_BITS_MIN = 2_048
SIZE_MAX = 256 << 10  # of a document
ASK_TIMEOUT_S = 5.0  # for its first byte, and then for the rest
WAIT_S = 2.0  # of one login for an answer
ASK_INTERVAL_S = 30.0  # at least between two requests
REFRESH_AFTER_S = 600.0
USABLE_S = 86_400.0  # without a new answer; then a withdrawn key could be trusted too long


class KeysUnusable(Exception):
    """A document has no usable keys; the text says why."""


class KeysPending(Exception):
    """The keys are being requested; the caller should try again."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, and the algorithms that it serves."""

    key_id: str | None
    public_key: Any
    algorithms: tuple[str, ...]


class IssuerKeys(Protocol):
    """Where an issuer's keys come from."""

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """The key of a token's header; without an id, the only key for the algorithm.

        Raises:
            KeysPending: it is not known yet.
        """
        ...


class KeyFile:
    """The keys in a file.

    Raises:
        KeysUnusable: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp = self._stamp_now()
        self._keys = self._read()

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """The key of a token's header."""
        with self._lock:
            if (stamp := self._stamp_now()) != self._stamp:
                self._stamp = stamp
                try:
                    self._keys = self._read()
                except KeysUnusable as refused:
                    if isinstance(refused.__cause__, OSError):
                        self._stamp = None  # it may be readable at the next login
                    LOG.warning("refused an issuer's changed keys; the former stay", extra={"reason": str(refused)})
        return _choose(self._keys, key_id, algorithm)

    def _read(self) -> list[IssuerKey]:
        try:
            return read_keys(self._path.read_bytes())
        except OSError as bad:
            raise KeysUnusable(f"{self._path} cannot be read: {bad.strerror}") from bad

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Keys, and when they were read, by the monotonic clock."""

    keys: tuple[IssuerKey, ...] = ()
    read_at_s: float = float("-inf")


class KeyUrl:
    """The keys at an https URL. It is asked for the first time when a token needs it.

    Owner: `_lock` guards when it was asked; what was read is replaced as a whole by the one thread that asks.

    Args:
        ca: the authority of that server; None: those that the system trusts.

    Raises:
        OSError: the authority's file cannot be used.
    """

    def __init__(self, url: str, ca: Path | None) -> None:
        self._url = url
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())
        self._lock = threading.Lock()
        self._waiting = threading.Lock()
        self._answered = threading.Event()
        self._fetched = _Fetched()
        self._asked_at_s, self._is_asking = float("-inf"), False

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """The key of a token's header."""
        now_s = time.monotonic()
        if now_s - self._fetched.read_at_s > REFRESH_AFTER_S:
            self._ask(now_s)
        if (found := self._known(key_id, algorithm)) is not None:
            return found
        self._ask(now_s)
        self._await_answer()
        return self._known(key_id, algorithm)

    def _known(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        fetched = self._fetched
        if time.monotonic() - fetched.read_at_s > USABLE_S:
            return None
        return _choose(fetched.keys, key_id, algorithm)

    def _ask(self, now_s: float) -> None:
        """Request the document, unless that was done lately or is being done."""
        with self._lock:
            if self._is_asking or now_s - self._asked_at_s < ASK_INTERVAL_S:
                return
            self._asked_at_s, self._is_asking = now_s, True
            self._answered.clear()
        start_thread(self._fetch, "issuer keys", self._on_failure)

    def _await_answer(self) -> None:
        if self._answered.is_set():
            return
        if not self._waiting.acquire(blocking=False):
            raise KeysPending
        try:
            if not self._answered.wait(WAIT_S):
                raise KeysPending
        finally:
            self._waiting.release()

    # ---- in the thread that asks ----

    def _fetch(self) -> None:
        try:
            with self._opener.open(self._url, timeout=ASK_TIMEOUT_S) as reply:
                keys = read_keys(_read_document(reply, time.monotonic() + ASK_TIMEOUT_S))
        except (OSError, HTTPException, KeysUnusable) as failed:  # URLError is an OSError
            LOG.warning("could not fetch an issuer's keys", extra={"url": self._url, "reason": str(failed)})
        else:
            self._fetched = _Fetched(tuple(keys), time.monotonic())
        self._end()

    def _on_failure(self, name: str, failure: BaseException) -> None:
        """An error that no server of an issuer explains. Logins continue with the keys that are known."""
        mark_unhealthy(name, failure)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_asking = False
            self._answered.set()


def _read_document(reply: IO[bytes], until_s: float) -> bytes:
    """Read at most one byte more than a document may have; a server that sends them one by one is given up."""
    parts, size = [], 0
    while size <= SIZE_MAX and (part := reply.read1(SIZE_MAX + 1 - size)):  # type: ignore[attr-defined]
        parts.append(part)
        size += len(part)
        if time.monotonic() > until_s:
            raise TimeoutError(f"it was not complete after {ASK_TIMEOUT_S:g} s")
    return b"".join(parts)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys come from the configured server only, and never without TLS."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        """Refuse."""


def read_keys(document: bytes) -> list[IssuerKey]:
    """The usable keys of a JWKS. Keys of other kinds or for other uses are skipped.

    Raises:
        KeysUnusable: there are none, or it contains a private or weak key.
    """
    if len(document) > SIZE_MAX:
        raise KeysUnusable(f"it is longer than {SIZE_MAX} bytes")
    try:
        rows = json.loads(document)["keys"]
        found = [key for row in rows if (key := _key_of(row)) is not None]
    except (ValueError, TypeError, KeyError, AttributeError, PyJWTError) as bad:
        raise KeysUnusable(f"it is not a JWKS (RFC 7517): {bad}") from bad
    if not found:
        raise KeysUnusable("it has no RSA, EC or Ed25519 key for signatures")
    return found


def _key_of(row: Mapping[str, Any]) -> IssuerKey | None:
    kind = _KINDS.get(row.get("kty", ""))
    if kind is None or row.get("use", "sig") != "sig":
        return None
    if "d" in row:
        raise KeysUnusable("it contains a private key; publish only public keys, and replace this one")
    reader, algorithms = kind
    public_key = reader.from_jwk(dict(row))
    if isinstance(public_key, rsa.RSAPublicKey) and public_key.key_size < RSA_KEY_BITS_MIN:
        raise KeysUnusable(f"it has an RSA key of {public_key.key_size} bits; at least {RSA_KEY_BITS_MIN} are needed")
    only = row.get("alg")
    key_id = row.get("kid")
    return IssuerKey(key_id, public_key, tuple(each for each in algorithms if only in (None, each)))


def _choose(keys: Iterable[IssuerKey], key_id: str | None, algorithm: str) -> IssuerKey | None:
    fitting = [key for key in keys if algorithm in key.algorithms and key_id in (None, key.key_id)]
    return fitting[0] if len(fitting) == 1 else None
