"""The policy in force: loaded at start, replaced when its file changes or on command.

A file that cannot be used is refused, and the policy in force stays. Every change, and every time at which a rule
begins or ends, is announced to `on_change`, which ends what is no longer granted. Invariant: what the policy in force
says of any moment until the last announcement is enforced; so no end of a right falls between two looks, whichever
policy has it, and whether or not the wall clock was set meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.policy.document import check_adapters, load_policy
from tandemfeed.admin_server.policy.rules import (
    NOTHING,
    REFUSED,
    Action,
    Decision,
    Extent,
    IdentitySettings,
    Policy,
)
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.settings import FeedSettings
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.transport.settings_file import SettingsError

LOG = logging.getLogger("tandemfeed.admin_server.policy")
NOT_TRIED = (-1, -1, -1)  # in place of the stamp of a file
LOOK_INTERVAL_S = 0.25  # a changed file or an expired right ends streams within a second


class PolicyKeeper(Mapping[str, IdentitySettings]):
    """The policy in force. Safe to call from any thread. As a mapping: what a token states about each identity now.

    Owner: `_reloading` guards the replacement of the policy; `_announcing` guards what is enforced. Readers take the
    policy once, and no lock.

    Args:
        path: the policy file.
        cluster, feeds: the cluster file and its feeds, which the policy must fit.
        now_unix_ns: the wall clock, which the times of rules follow.

    Raises:
        SettingsError: the policy cannot be used.

    Attributes:
        loaded_unix_ns: when the policy in force was loaded.
        refusal: why the file's present content is not in force; empty if it is.
        disabled: identities that have no rights, whatever the policy grants them.
    """

    def __init__(
        self,
        path: Path,
        cluster: Path,
        feeds: Mapping[str, FeedSettings],
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path, self._cluster, self._feeds, self._now_unix_ns = path, cluster, feeds, now_unix_ns
        self._stamp = _stamp_of(path)
        self._policy, self._digest = self._load(self._content())
        self.loaded_unix_ns, self.refusal = now_unix_ns(), ""
        self.disabled: frozenset[str] = frozenset()
        self._on_change: Callable[[], None] = lambda: None
        self._reloading, self._announcing = threading.Lock(), threading.Lock()
        self._enforced_unix_ns: int | None = None  # up to when rights are enforced; None: not everything is
        self._cannot_record = False  # and that was logged
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    def policy_has(self, identity: str) -> bool:
        """Whether the policy has an identity, disabled or not."""
        return identity in self._policy.identities

    def decide(self, identity: str, action: Action, topic: str) -> Decision:
        """Whether an identity may do this now, on a topic or on a feed by its name."""
        if identity in self.disabled:
            return REFUSED
        return self._policy.decide(identity, action, topic, self._now_unix_ns())

    def allows(self, identity: str, action: Action, topics: Iterable[str]) -> bool:
        """Whether an identity may do this now on every one of the topics or feeds."""
        policy, now = self._policy, self._now_unix_ns()
        if identity in self.disabled:
            return False
        return all(policy.decide(identity, action, topic, now).is_allowed for topic in topics)

    def extent(self, identity: str, topic: str) -> Extent:
        """How much of a channel an identity may receive now."""
        if identity in self.disabled:
            return NOTHING
        return self._policy.extent(identity, topic, self._now_unix_ns())

    def roles_of(self, identity: str) -> frozenset[str]:
        """The roles of an identity; none if the policy does not name it, or it is disabled."""
        known = None if identity in self.disabled else self._policy.identities.get(identity)
        return frozenset() if known is None else self._policy.roles_of(known)

    def is_granted_on_every_feed(self, identity: str, action: Action) -> bool:
        """Whether an identity may do this on every feed of the cluster."""
        return self.allows(identity, action, self._feeds)

    # ---- what tokens state: Mapping[str, IdentitySettings] ----

    def __getitem__(self, name: str) -> IdentitySettings:
        policy, now = self._policy, self._now_unix_ns()
        if name in self.disabled:
            raise KeyError(name)
        identity = policy.identities[name]
        channels = [channel.topic for feed in self._feeds.values() for channel in feed.channels]
        topics = tuple(topic for topic in channels if policy.extent(name, topic, now))
        contribute = tuple(
            channel.topic
            for feed in self._feeds.values()
            for channel in feed.contributed_channels
            if policy.decide(name, Action.CONTRIBUTE, channel.topic, now).is_allowed
        )
        feeds = [feed.name for feed in self._feeds.values() if any(each.identity == name for each in feed.adapters)]
        return IdentitySettings(name, policy.roles_of(identity), topics, tuple(feeds), contribute)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._policy.identities if name not in self.disabled)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def disable(self, identities: frozenset[str]) -> None:
        """From now on, exactly these identities are disabled; returns when lost rights have ended."""
        self.disabled = identities
        self._announce_change()

    # ---- replacing it ----

    def watch(self, audit: AuditLog, on_change: Callable[[], None]) -> None:
        """From now on, reload the file when it changes, and call `on_change` whenever rights may have changed.

        Args:
            on_change: ends what is no longer granted; called again soon if it raises RecordsUnavailable.
        """
        self._audit, self._on_change = audit, on_change
        self._watcher = start_thread(self._watch, "policy", end_process)  # without it, no right would end in time

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()

    def reload(self, by: str) -> bool:
        """Read the file now. False if its content is that of the policy in force.

        Args:
            by: who requested it, for the audit log.

        Raises:
            SettingsError: the file was refused; the policy in force stays.
            OSError: the change could not be recorded; the policy in force stays.
        """
        with self._reloading:
            self._stamp = _stamp_of(self.path)  # so that the watch does not report the same refusal again
            content = self._content()
            if content is not None and sha256(content).digest() == self._digest:
                self.refusal = ""
                return False
            try:
                self._replace(content, by)
            except OSError as failed:
                self._stamp = NOT_TRIED  # the watch tries again
                self.refusal = f"the change could not be recorded: {failed}"
                raise
        LOG.info("reloaded the policy", extra={"file": str(self.path), "by": by})
        self._announce_change()
        return True

    def _replace(self, content: bytes | None, by: str) -> None:
        """Put this content of the file in force, after it was recorded."""
        try:
            policy, digest = self._load(content)
        except SettingsError as refused:
            self._audit.write("policy refused", reason=str(refused), by=by)
            self.refusal = str(refused)
            LOG.warning("refused the changed policy", extra={"reason": str(refused), "by": by})
            raise
        self._audit.write("policy changed", file=str(self.path), sha256=digest.hex(), by=by)
        self._policy, self._digest = policy, digest
        self.loaded_unix_ns, self.refusal = self._now_unix_ns(), ""

    def _content(self) -> bytes | None:
        """The file's content; None if it cannot be read: loading it says why."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def _load(self, content: bytes | None) -> tuple[Policy, bytes]:
        """The policy in this content of the file, and its digest."""
        policy = load_policy(self.path, self._feeds, content)
        check_adapters(self._cluster, self._feeds, policy)
        return policy, sha256(content or b"").digest()

    def _announce_change(self) -> None:
        with self._announcing:
            now = self._now_unix_ns()  # before: what begins or ends meanwhile is announced again
            self._enforced_unix_ns = None
            try:
                self._on_change()
            except (RecordsUnavailable, OSError):
                LOG.exception("could not end all rights that were lost; retrying")
            else:
                self._enforced_unix_ns = now

    def look(self) -> None:
        """Do what is due: reload a changed file, and announce which rights have begun or ended."""
        self._reload_if_touched()
        enforced, now = self._enforced_unix_ns, self._now_unix_ns()
        if enforced is None or now < enforced:  # the clock was set back: rights that had ended may be granted again
            self._announce_change()
            return
        change_at = self._policy.next_change_unix_ns(enforced)
        if change_at is not None and now >= change_at:
            self._announce_change()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_INTERVAL_S):
            self.look()

    def _reload_if_touched(self) -> None:
        """Reload when the file's time, size or inode changed, so that a refused file is reported once."""
        if _stamp_of(self.path) == self._stamp:
            return
        try:
            self.reload("a change of the file")
        except SettingsError:
            pass  # `reload` has reported it
        except OSError as failed:
            if not self._cannot_record:
                text = "could not record the change of the policy, so the former one stays in force; retrying"
                LOG.error(text, extra={"why": str(failed)})
            self._cannot_record = True
            return
        self._cannot_record = False


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
