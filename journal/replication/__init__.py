"""A journal on several hosts: followers have the leader's records at the same indices. See docs/journal-replication.md.

`ReplicationLeader` serves a journal, `ReplicationFollower` keeps a copy of it, `ReplicatedAppender` waits for copies.
The cores (leader_core.py, follower_core.py) make all decisions, without sockets, files, clocks or random numbers; the
shells perform them.
"""

from tandemfeed.journal.replication.appender import ReplicatedAppender
from tandemfeed.journal.replication.follower.follower import FollowerStatus, ReplicationFollower
from tandemfeed.journal.replication.leader.leader import LeaderStatus, Mode, ReplicationLeader
from tandemfeed.journal.replication.limits import Limits
from tandemfeed.journal.replication.states import FollowerState, PeerState
from tandemfeed.journal.replication.wire.security import FollowerKeys, LeaderKeys, new_keys

__all__ = [
    "FollowerKeys",
    "FollowerState",
    "FollowerStatus",
    "LeaderKeys",
    "LeaderStatus",
    "Limits",
    "Mode",
    "PeerState",
    "ReplicatedAppender",
    "ReplicationFollower",
    "ReplicationLeader",
    "new_keys",
]
