"""What tests of adapter processes share: an admin server, and a source that the test sends by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.deploy.cluster.ports import free_endpoint
from tests.adapter.processes.adapter_processes import SourceByHand
from tests.adapter.processes.source_replay import SourceReplay
from tests.admin_server.cluster_files import PATIENT, SOURCE_REPLAY, running_server


@pytest.fixture
def replay_at() -> str:
    return free_endpoint()


@pytest.fixture
def server(tmp_path: Path, replay_at: str) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=PATIENT.replace(SOURCE_REPLAY, replay_at)) as running:
        yield running


@pytest.fixture
def source(server: AdminServer, replay_at: str) -> Iterator[SourceByHand]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    by_hand = SourceByHand(context)
    replay = SourceReplay(by_hand, replay_at, server.folder.path)
    yield by_hand
    replay.close()
    by_hand.close()
    context.term()
