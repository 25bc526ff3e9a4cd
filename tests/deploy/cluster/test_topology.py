"""Clusters of every size: the admin server accepts the generated settings."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tandemfeed.admin_server.policy.document import check_adapters, load_policy
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.deploy.cluster.topology import Shape, host_names, render_cluster, render_policy


def written(shape: Shape, folder: Path) -> tuple[Path, Path]:
    ports = itertools.count(5_000)
    addresses = {name: f"10.77.0.{place + 2}" for place, name in enumerate(host_names(shape))}
    source_ports = {feed.gateway: next(ports) for feed in shape.feed_layouts()}
    cluster, policy = folder / "cluster.toml", folder / "policy.toml"
    cluster.write_text(render_cluster(shape, addresses, source_ports, lambda: next(ports)))
    policy.write_text(render_policy(shape))
    return cluster, policy


@pytest.mark.parametrize("shape", [Shape(), Shape(2, 3, 1, 4, 300), Shape(8, 8, 8, 7)])
def test_the_admin_server_accepts_a_cluster_of_any_size(shape: Shape, tmp_path: Path) -> None:
    cluster, policy = written(shape, tmp_path)
    feeds = load_cluster(cluster)
    check_adapters(cluster, feeds, load_policy(policy, feeds))
    assert len(feeds) == shape.feeds
    for feed in feeds.values():
        assert len(feed.channels) == shape.channels
        assert len(feed.adapters) == shape.backups + 1
        assert all(adapter.unicast for adapter in feed.adapters)
        assert {channel.table for channel in feed.channels} == {table.id for table in feed.tables}
        assert {len(channel.source_stream_ids) for channel in feed.channels} == {shape.streams_per_channel}


def test_every_process_has_its_own_host() -> None:
    names = host_names(Shape(feeds=2, backups=2))
    assert len(names) == len(set(names)) == 1 + 2 * (1 + 3 + 1)


@pytest.mark.parametrize("wrong", [{"feeds": 0}, {"backups": 8}, {"channels": 9}, {"streams_per_channel": 0}])
def test_an_impossible_size_is_refused_with_the_limits(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"it must be 1 to [78]"):
        Shape(**wrong)
