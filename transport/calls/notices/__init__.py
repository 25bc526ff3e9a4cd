"""Datagrams that report sooner what a reliable call also reports: an adapter's death, and the grant that follows it.

A call takes half a dozen thread switches in two processes. On a machine that is busy freeing a dead process's memory,
they take milliseconds, during which no adapter is active. A datagram takes one switch. If it is lost, or a firewall
stops it, the call still arrives. Notices travel between the admin server's port and the adapter's, over UDP.
"""

from __future__ import annotations

TAKEOVER_S = 0.05  # What else a death requires waits for so long, because a takeover needs the processors first.
