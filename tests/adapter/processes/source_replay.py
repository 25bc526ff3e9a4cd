"""The feed source's replay service in a test: it sends the packets of a `SourceByHand` again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc

from tandemfeed.feedcore.wire.source_packet import decode_source_packet
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc
from tests.adapter.processes.adapter_processes import SourceByHand


class SourceReplay(replay_pb2_grpc.SourceReplayServicer):
    """Answers `Fill` from memory.

    Args:
        state: the admin server's folder, which contains the source's certificate.
    """

    def __init__(self, source: SourceByHand, listen: str, state: Path) -> None:
        self._source = source
        certificate, key = ((state / "certs" / f"source.{end}").read_bytes() for end in ("crt", "key"))
        self._server: RpcServer = serve(
            [lambda server: replay_pb2_grpc.add_SourceReplayServicer_to_server(self, server)],
            ["tandemfeed.v1.SourceReplay"],
            listen,
            certificate,
            key,
            [],
        )

    def Fill(  # noqa: N802
        self, request: replay_pb2.FillRequest, _context: grpc.ServicerContext
    ) -> Iterator[replay_pb2.FillChunk]:
        """Return every packet that contains a requested message."""
        for datagram in list(self._source.sent[request.source_stream_id]):
            packet = decode_source_packet(datagram, self._source.feed_id)
            if request.session not in (0, packet.session):
                continue
            end = packet.first_source_seq + packet.message_count
            if any(packet.first_source_seq <= each.last_seq and end > each.first_seq for each in request.ranges):
                yield replay_pb2.FillChunk(datagrams=[datagram])

    def close(self) -> None:
        """Stop serving."""
        self._server.stop(0)
