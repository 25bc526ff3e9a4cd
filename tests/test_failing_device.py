"""The disk that fails behaves as a real one, and so do the kernel and `durable` on it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.runtime import durable
from tests.failing_device import MB, PAGE, FailingDevice


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FailingDevice]:
    with FailingDevice(tmp_path) as device:
        yield device


def _opened(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 4 * MB)
    os.fsync(descriptor)
    durable.sync_folder(path.parent)
    return descriptor


def test_after_a_failed_flush_the_next_one_succeeds_although_the_data_is_lost(device: FailingDevice) -> None:
    path = device.folder / "file"
    descriptor = _opened(path)
    os.pwrite(descriptor, b"a" * MB, 0)
    os.fdatasync(descriptor)
    os.pwrite(descriptor, b"b" * MB, MB)
    with device.failing(), pytest.raises(OSError, match="No space left"):
        os.fdatasync(descriptor)
    os.fdatasync(descriptor)
    assert path.read_bytes()[MB : 2 * MB] == b"b" * MB  # from the cache
    os.close(descriptor)
    device.lose_power()
    content = path.read_bytes()
    assert content[:MB] == b"a" * MB
    assert content[MB : 2 * MB].count(b"b") < MB


@pytest.mark.parametrize("is_mapped", [False, True])
def test_what_was_written_again_after_a_failed_flush_is_on_the_disk(device: FailingDevice, is_mapped: bool) -> None:
    """Of a preallocated file: ext4 does not keep what is written again through its page cache."""
    path, size = device.folder / "file", MB
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    os.fsync(descriptor)
    durable.sync_folder(device.folder)
    content = os.urandom(size)
    with mmap.mmap(descriptor, size) as mapped:
        if is_mapped:
            mapped[:] = content
        else:
            os.pwrite(descriptor, content, 0)
        with device.failing():
            with pytest.raises(durable.FlushFailed):
                durable.flush(descriptor, path)
            with pytest.raises(durable.FlushFailed):
                durable.rewrite(path)
            assert path.read_bytes() == content
        durable.rewrite(path, 0, (3 * PAGE, size), end=PAGE)
        durable.rewrite(path, PAGE, end=3 * PAGE)
        assert path.read_bytes() == content
        assert mapped[:] == content
    os.close(descriptor)
    device.lose_power()
    assert path.read_bytes() == content


def test_what_was_not_flushed_is_lost_with_the_power(device: FailingDevice) -> None:
    path = device.folder / "file"
    descriptor = _opened(path)
    os.pwrite(descriptor, b"a" * MB, 0)
    os.close(descriptor)
    (device.folder / "name").touch()
    device.lose_power()
    assert path.read_bytes() == bytes(4 * MB)
    assert not (device.folder / "name").exists()


def test_no_write_that_fails_in_part_counts_as_written(device: FailingDevice) -> None:
    path, pages = device.folder / "file", 60
    descriptor = _opened(path)
    os.pwrite(descriptor, bytes(4 * MB), 0)
    os.pwrite(descriptor, b"a" * 10 * PAGE, 0)
    os.fsync(descriptor)
    with mmap.mmap(descriptor, 4 * MB) as mapped, device.failing():
        mapped[9 * PAGE : pages * PAGE] = b"b" * (pages - 9) * PAGE  # the first of these pages can be written
        with pytest.raises(OSError, match="No space left"):
            os.fdatasync(descriptor)
    os.close(descriptor)


def test_pages_of_zeros_that_the_disk_already_has_are_refused_too(device: FailingDevice) -> None:
    path = device.folder / "file"
    descriptor = _opened(path)
    os.pwrite(descriptor, bytes(MB), 0)
    os.fdatasync(descriptor)
    os.pwrite(descriptor, b"b" * MB, 0)
    with device.failing(), pytest.raises(OSError, match="No space left"):
        os.fdatasync(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("is_stored_again", [False, True])
def test_a_mapped_page_that_was_refused_reaches_the_disk_if_the_same_value_is_stored_again(
    device: FailingDevice, is_stored_again: bool
) -> None:
    """The kernel protects a page before it writes it, so a store marks it again whatever it stores."""
    path, size = device.folder / "file", 4 * PAGE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, bytes(size), 0)
    os.fsync(descriptor)
    durable.sync_folder(device.folder)
    with mmap.mmap(descriptor, size) as mapped:
        mapped[PAGE] = 1
        with device.failing(), pytest.raises(durable.FlushFailed):
            durable.flush(descriptor, path)
        if is_stored_again:
            mapped[PAGE] = 1
        durable.flush(descriptor, path)
        assert mapped[PAGE] == 1
    os.close(descriptor)
    device.lose_power()
    assert path.read_bytes()[PAGE] == is_stored_again


def test_every_descriptor_that_is_open_learns_of_a_failed_write_once(device: FailingDevice) -> None:
    path = device.folder / "file"
    one, other = (_opened(path) for _ in range(2))
    os.pwrite(one, b"a" * MB, 0)
    for descriptor in (one, other):
        durable.flush(descriptor, path)
    os.pwrite(one, b"b" * MB, MB)
    with device.failing(), pytest.raises(durable.FlushFailed):
        durable.flush(one, path)
    with pytest.raises(durable.FlushFailed):
        durable.flush(other, path)
    third = os.open(path, os.O_RDWR)
    for descriptor in (one, other, third):
        durable.flush(descriptor, path)
        os.close(descriptor)
