"""What the identities of one feed were given: keys of channels, and tokens that open its adapters' replay, or that let
them contribute.

Recorded before it is handed out. So a right that is lost, while this server runs, while none does, or between two
servers, ends all that was given: the channel's keys are replaced, and the identity's tokens refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tandemfeed.admin_server.records.lease_records import ClusterRecords
from tandemfeed.transport.calls.revoked_tokens import RevokedTokens

# What a right to contribute to a channel is recorded as, beside the rights to channels, which have 16 bits.
_CONTRIBUTION = 1 << 16


def contribution_to(channel_id: int) -> int:
    """The right to contribute to a channel, in place of its channel_id. It opens no key."""
    return channel_id | _CONTRIBUTION


def contributed_channel(right: int) -> int | None:
    """The channel to which this right lets an identity contribute; None: it is a right to receive a channel."""
    return right & ~_CONTRIBUTION if right & _CONTRIBUTION else None


@dataclass(frozen=True, slots=True)
class LostRights:
    """What was given to identities that are no longer entitled to it.

    Attributes:
        identities: by channel_id.
        as_of: what was given by then; later, the same may be given again, of which this says nothing.
    """

    identities: Mapping[int, frozenset[str]]
    as_of: int

    def __bool__(self) -> bool:
        return bool(self.identities)


class GivenRights:
    """The recorded rights of one feed. Safe to call from any thread; its methods may wait for the disk.

    Owner: a lock, which is held while a change is recorded. Between `lost` and `forget`, keys are replaced without it;
    a right that is given again meanwhile, with the former keys or the new ones, is not forgotten.

    Attributes:
        revoked: the tokens that the feed's adapters must refuse.
    """

    def __init__(self, records: ClusterRecords, feed_id: int) -> None:
        self._records, self._feed_id = records, feed_id
        self._lock = threading.Lock()
        self._given = records.granted(feed_id)
        self._given_count = 0  # of all that was given here
        self._last_given: dict[tuple[int, str], int] = {}  # channel_id, identity -> the count when it was given last
        self.revoked = RevokedTokens(records.revoked_tokens(feed_id))

    def note(self, identity: str, channel_ids: Collection[int]) -> None:
        """Record that an identity is about to get keys or a token of these channels, unless that is recorded.

        Raises:
            RecordsUnavailable: it is not recorded, so it must not be handed out.
        """
        with self._lock:
            new = [channel_id for channel_id in channel_ids if identity not in self._given.get(channel_id, ())]
            if new:
                self._records.note_granted(self._feed_id, new, identity)
            for channel_id in new:
                self._given.setdefault(channel_id, set()).add(identity)
            self._given_count += 1
            self._last_given.update(((channel_id, identity), self._given_count) for channel_id in channel_ids)

    def lost(self, is_entitled: Callable[[str, int], bool]) -> LostRights:
        """What was given to identities that are no longer entitled to it."""
        with self._lock:
            as_of = self._given_count  # before anything is asked: who is entitled afterwards may be given it again
            given = {channel_id: set(identities) for channel_id, identities in self._given.items()}
        found = {
            channel_id: frozenset(each for each in identities if not is_entitled(each, channel_id))
            for channel_id, identities in given.items()
        }
        return LostRights({channel_id: identities for channel_id, identities in found.items() if identities}, as_of)

    def forget(self, lost: LostRights) -> None:
        """Record that what was given no longer opens these channels, after their keys were replaced.

        Raises:
            RecordsUnavailable: the next start does it again.
        """
        with self._lock:
            for channel_id, identities in lost.identities.items():
                ended = {each for each in identities if self._last_given.get((channel_id, each), 0) <= lost.as_of}
                if ended:
                    self._records.forget_granted(self._feed_id, channel_id, ended)
                    self._given[channel_id] -= ended
                for each in ended:
                    self._last_given.pop((channel_id, each), None)

    def revoke_tokens(self, identities: Collection[str]) -> None:
        """Refuse the tokens that these identities have, from now on and after any restart.

        Raises:
            RecordsUnavailable: they are refused, but it is not recorded.
        """
        with self._lock:
            self.revoked.revoke(identities)
            self._records.note_revoked_tokens(self._feed_id, self.revoked.as_dict())
