"""The outside issuers whose signed tokens the server accepts: their file, read again when it changes.

Only signatures with a public key are possible: an algorithm with a shared key, or none, is an error in the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tandemfeed.admin_server.identity.issuer_keys import IssuerKeys, KeyFile, KeysUnusable, KeyUrl
from tandemfeed.admin_server.settings import Name
from tandemfeed.transport.settings_file import InvalidSetting, SettingsError, SettingsFile, shown

LOG = logging.getLogger("tandemfeed.admin_server.identity")
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip
Text = Annotated[str, Meta(min_length=1, max_length=512, description="a text of 1 to 512 characters")]
HTTPS = "https://"


class IssuerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table [[issuer]].

    Attributes:
        issuer, audience: what `iss` must be, and what `aud` must be or contain.
        keys: a JWKS (RFC 7517): the path of a file, or an https URL.
        keys_ca: the authority of the URL's server (PEM file); None: the authorities that the system trusts.
        identity_claim: the claim that names the identity.
        prefix: what that name must begin with; the rest is the identity.
        identities: the issuer's names and our identities; None: they are the same, without the prefix.
        leeway_s: how much the issuer's clock may differ.
    """

    issuer: Text
    audience: Text
    keys: Text
    keys_ca: Text | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)]
    identity_claim: Text = "sub"
    prefix: str = ""
    identities: dict[str, Name] | None = None
    leeway_s: Annotated[int, Meta(ge=0, le=300)] = 30

    def __post_init__(self) -> None:
        if "://" in self.keys and not self.keys.startswith(HTTPS):
            raise InvalidSetting(f"is {shown(self.keys)}; it must be the path of a file, or an https URL", "keys")
        if self.keys_ca is not None and not self.keys.startswith(HTTPS):
            raise InvalidSetting("is set, but keys is a file, so no server is asked; remove it", "keys_ca")
        if self.prefix and self.identities is not None:
            raise InvalidSetting("is set, but identities names each identity; remove one of them", "prefix")


class _IssuersFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuers: Annotated[tuple[IssuerSettings, ...], Meta(min_length=1)] = field(name="issuer")

    def __post_init__(self) -> None:
        first: dict[str, int] = {}
        for place, each in enumerate(self.issuers):
            if (other := first.setdefault(each.issuer, place)) != place:
                reason = f"is {shown(each.issuer)}, like that of issuer[{other}]; each must be different"
                raise InvalidSetting(reason, "issuer", place, "issuer")


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer and its keys."""

    settings: IssuerSettings
    keys: IssuerKeys

    def identity_of(self, name: str) -> str | None:
        """Our identity for the issuer's name; None: the issuer does not speak for it."""
        if self.settings.identities is not None:
            return self.settings.identities.get(name)
        if not name.startswith(self.settings.prefix):
            return None
        return name.removeprefix(self.settings.prefix)


class Issuers:
    """The issuers of a file. Safe to call from any thread.

    Args:
        path: None: there is none.

    Raises:
        SettingsError: the file, or a file with keys that it names, cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp = _stamp_of(path)
        self._issuers: Mapping[str, Issuer] = {} if path is None else _load(path)

    def __bool__(self) -> bool:
        return bool(self._issuers)

    def find(self, name: str) -> Issuer | None:
        """An issuer by the name in its tokens."""
        with self._lock:
            if (stamp := _stamp_of(self._path)) != self._stamp and self._path is not None:
                self._stamp = stamp
                self._reload(self._path)
        return self._issuers.get(name)

    def _reload(self, path: Path) -> None:
        try:
            self._issuers = _load(path)
        except SettingsError as refused:
            LOG.warning("refused the changed issuers; the former stay", extra={"reason": str(refused)})
        else:
            LOG.info("reloaded the issuers", extra={"file": str(path)})


def _load(path: Path) -> Mapping[str, Issuer]:
    file = SettingsFile(path)
    found = {}
    for place, each in enumerate(file.convert(_IssuersFile).issuers):
        try:
            found[each.issuer] = Issuer(each, _keys_of(each, path.parent))
        except KeysUnusable as bad:
            raise file.error(("issuer", place, "keys"), f"is {shown(each.keys)}: {bad}") from bad
        except OSError as bad:
            raise file.error(("issuer", place, "keys_ca"), f"cannot be used: {bad}") from bad
    return found


def _keys_of(settings: IssuerSettings, folder: Path) -> IssuerKeys:
    if settings.keys.startswith(HTTPS):
        return KeyUrl(settings.keys, None if settings.keys_ca is None else folder / settings.keys_ca)
    return KeyFile(folder / settings.keys)


def _stamp_of(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
