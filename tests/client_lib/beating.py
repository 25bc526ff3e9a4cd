"""Adapters that beat in the background, as real ones do."""

from __future__ import annotations

import threading

from tests.client_lib.toy_cluster import ToyCluster, heartbeat


class Beating:
    """Adapters that beat every 10 ms in a thread."""

    def __init__(self, cluster: ToyCluster, next_message_seq: int, adapter_ids: tuple[int, ...] = (1, 2)) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(cluster, next_message_seq, adapter_ids), daemon=True)
        self._thread.start()

    def _run(self, cluster: ToyCluster, next_message_seq: int, adapter_ids: tuple[int, ...]) -> None:
        while not self._stopped.wait(0.01):
            for adapter in cluster.adapters:
                if adapter.adapter_id in adapter_ids:
                    adapter.send(heartbeat(next_message_seq))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
