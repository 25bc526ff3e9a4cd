"""Whether this server may act for the cluster: a fence for grants, and a gate for calls.

If several admin servers share their records, one of them is active. The fence uses only this process's monotonic
clock: a confirmation of leadership counts from the time of its request, and only for as long as every successor waits
before it grants. So a server that was paused or cut off grants nothing when it resumes.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from tandemfeed.transport.calls.admin_servers import ACTIVE_SERVER_KEY
from tandemfeed.transport.calls.serving.call_context import CallContext

OWN_SERVICES = "/tandemfeed."  # health and reflection also answer on a standby


@dataclass(slots=True)
class Fence:
    """Says whether a grant may be made now. Pure; each leadership of a server has its own fence.

    Attributes:
        validity_ns: how long a confirmation is valid, counted from its request.
    """

    validity_ns: int
    _until_ns: int = 0
    _is_closed: bool = False

    def confirm(self, requested_at_ns: int) -> None:
        """A confirmation that was requested at this time succeeded."""
        self._until_ns = max(self._until_ns, requested_at_ns + self.validity_ns)

    def close(self) -> None:
        """Allow no more grants, even if a confirmation still arrives."""
        self._is_closed = True

    def allows_grants(self, now_ns: int) -> bool:
        """True if a grant or renewal that answers a report heard before `now_ns` may be made."""
        return not self._is_closed and now_ns < self._until_ns


class LeadershipGate:
    """Lets calls through while this server is active; a standby answers UNAVAILABLE and names the active server.

    Attributes:
        active_endpoint: the active server's endpoint; "" if it is unknown.
    """

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.active_endpoint = ""

    def __call__(self, call: CallContext) -> None:
        """Refuse the call if this server is a standby."""
        if self.is_open or not call.method.startswith(OWN_SERVICES):
            return
        known = self.active_endpoint
        if known:
            call.set_trailing_metadata(((ACTIVE_SERVER_KEY, known),))
        text = "this admin server is a standby; " + (f"{known} is active" if known else "the active one is unknown")
        call.abort(grpc.StatusCode.UNAVAILABLE, text)
