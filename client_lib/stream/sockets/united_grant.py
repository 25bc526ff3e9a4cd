"""What several subscriptions of one feed may use together. Pure.

Their grants may be of different times, because each subscription takes its own when it polls. So a subscription must
still check what arrives against its own grant: its keys, its channels, and the starts that it was announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandemfeed.client_lib.login.grant import Grant, GrantedAdapter
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart


def united(grants: Sequence[Grant]) -> Grant:
    """Every channel, key, adapter and announced start. Args: grants: of one feed; the newest last."""
    newest = grants[-1]
    if len(grants) == 1:
        return newest
    adapters: dict[int, GrantedAdapter] = {}
    for grant in grants:
        for adapter_id, adapter in grant.adapters.items():
            former = adapters.get(adapter_id)
            adapters[adapter_id] = adapter if former is None else _joined(former, adapter)
    return replace(
        newest,
        topics_by_channel={channel: topic for each in grants for channel, topic in each.topics_by_channel.items()},
        keys={key_id: key for each in grants for key_id, key in each.keys.items()},
        adapters=adapters,
    )


def _joined(former: GrantedAdapter, later: GrantedAdapter) -> GrantedAdapter:
    """One adapter with the addresses of its newest start; of equal starts, as the later grant has it."""
    newer, older = (later, former) if later.incarnation >= former.incarnation else (former, later)
    unicast = newer.unicast
    if unicast is None and newer.incarnation == older.incarnation:
        unicast = older.unicast
    starts: dict[tuple[int, int], AnnouncedStart] = {}
    for start in (*older.starts, *newer.starts):
        known = starts.get(start.identity)
        counters = {} if known is None else known.next_counters
        starts[start.identity] = replace(start, next_counters={**counters, **start.next_counters})
    return replace(newer, groups={**older.groups, **newer.groups}, starts=tuple(starts.values()), unicast=unicast)
