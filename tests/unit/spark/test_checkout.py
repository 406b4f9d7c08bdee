"""spark/checkout.py: which files a database of a process holds, and what the dead leave behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.errors import DiskFailed, StoreCorrupt
from streamsx.spark import checkout as module
from streamsx.spark.checkout import (
    Chain,
    SnapshotRows,
    cache_place,
    checkout,
    discard_all,
    scratch_folder,
)
from streamsx.spark.plan import STORES_MAX
from streamsx.state.api import INDEX, ROW
from streamsx.state.snapshot_files import SnapshotFiles, open_files

Entries = dict[bytes, bytes | None]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[SnapshotFiles]:
    yield open_files(str(tmp_path / "state"))
    discard_all()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return scratch_folder(str(tmp_path))


def spilled(files: SnapshotFiles, scratch: Path, chain: Chain, number: int, **new: str) -> Chain:
    """The chain with what an attempt has written; an empty value deletes."""
    rows = SnapshotRows(files, scratch, "store", 0, chain, number)
    rows.write({ROW + k.encode(): v.encode() or None for k, v in new.items()}, None)
    rows.spill(last=True)
    return rows.chain


def held(files: SnapshotFiles, scratch: Path, chain: Chain) -> dict[str, str]:
    rows = checkout(files, scratch, "store", 0, chain).scan(ROW, INDEX)
    return {key[1:].decode(): value.decode() for key, value in rows}


def test_continued_chain_keeps_database_and_other_chain_begins_anew(
    files: SnapshotFiles, scratch: Path
) -> None:
    first = spilled(files, scratch, (), 0, a="1" * 99, b="2")
    failed = spilled(files, scratch, first, 1, a="lost", c="lost")
    place = checkout(files, scratch, "store", 0, failed).path
    assert held(files, scratch, first) == {"a": "1" * 99, "b": "2"}
    again = checkout(files, scratch, "store", 0, first).path
    assert (again != place, place.exists()) == (True, False)
    second = spilled(files, scratch, first, 1, b="", c="3")
    assert checkout(files, scratch, "store", 0, second).path == again
    assert held(files, scratch, second) == {"a": "1" * 99, "c": "3"}
    assert held(files, scratch, ()) == {}


def test_store_can_be_checked_out_again_after_full_disk(
    files: SnapshotFiles, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = spilled(files, scratch, (), 0, a="1")

    def full(*_: object) -> None:
        raise Exception("IO error: No space left on device")

    with monkeypatch.context() as filled:
        filled.setattr(module, "ingest", full)
        discard_all()
        with pytest.raises(DiskFailed):
            held(files, scratch, chain)
    assert held(files, scratch, chain) == {"a": "1"}


def test_files_are_cached_once_per_host_and_removed_with_chain(
    files: SnapshotFiles, scratch: Path, tmp_path: Path
) -> None:
    first = spilled(files, scratch, (), 0, a="1")
    second = spilled(files, scratch, first, 1, a="2" * 99)
    discard_all()
    cached = [cache_place(files, scratch, each.file) for each in second]
    assert all(path.exists() for path in cached)
    files.delete(second[0].file)
    assert held(files, scratch, second) == {"a": "2" * 99}
    third = spilled(files, scratch, second, 2, a="3")  # the delta was larger than the full file
    assert [each.full for each in third] == [True]
    assert not any(path.exists() for path in cached)
    cold = scratch_folder(str(tmp_path / "other"))
    discard_all()
    assert held(files, cold, third) == {"a": "3"}


@pytest.mark.parametrize("at", ["checksum", "fetch", "place"])
def test_file_forgotten_during_checkout_is_fetched_again(
    files: SnapshotFiles, scratch: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    chain = spilled(files, scratch, (), 0, a="1")
    discard_all()
    cached = cache_place(files, scratch, chain[0].file)
    if at == "fetch":
        cached.unlink()
    done, runs = getattr(module, at), [lambda: module._forget(cached.with_name("9"))]

    def meanwhile(*about: object) -> object:
        found = done(*about) if at == "fetch" else None
        if runs:
            runs.pop()()
        return found if at == "fetch" else done(*about)

    monkeypatch.setattr(module, at, meanwhile)
    assert held(files, scratch, chain) == {"a": "1"}
    assert runs == []


def test_torn_file_is_refused_and_not_cached(files: SnapshotFiles, scratch: Path) -> None:
    (sst,) = spilled(files, scratch, (), 0, a="1")
    discard_all()
    cache_place(files, scratch, sst.file).unlink()
    torn = (sst._replace(crc32c=sst.crc32c ^ 1),)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="torn file in a snapshot"):
            checkout(files, scratch, "store", 0, torn)
    assert held(files, scratch, (sst,)) == {"a": "1"}


def test_cached_file_damaged_on_disk_is_fetched_again(files: SnapshotFiles, scratch: Path) -> None:
    (sst,) = spilled(files, scratch, (), 0, a="1")
    cached = cache_place(files, scratch, sst.file)
    spoilt = bytearray(cached.read_bytes())
    spoilt[len(spoilt) // 2] ^= 255
    cached.unlink()  # else it is the snapshot's own file
    cached.write_bytes(spoilt)
    discard_all()
    assert held(files, scratch, (sst,)) == {"a": "1"}


def test_hosts_on_shared_disk_use_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = scratch_folder(str(tmp_path))
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert scratch_folder(str(tmp_path)) != mine


def test_databases_of_dead_processes_are_removed_and_live_ones_stay(
    files: SnapshotFiles, scratch: Path
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getpid(), os.getppid()):
        (scratch / str(pid) / "0").mkdir(parents=True)
    checkout(files, scratch, "store", 0, ())
    assert not (scratch / str(dead.pid)).exists()
    assert (scratch / str(os.getppid()) / "0").exists()
    mine = list((scratch / str(os.getpid())).iterdir())
    checkout(files, scratch, "store", 1, ())
    assert len(list((scratch / str(os.getpid())).iterdir())) == len(mine) + 1 == 2


def test_least_recently_used_database_is_closed(
    files: SnapshotFiles, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert STORES_MAX == 64
    monkeypatch.setattr(module, "STORES_MAX", 2)
    made = [checkout(files, scratch, "store", n, ()).path for n in (0, 1)]
    checkout(files, scratch, "store", 0, ())
    checkout(files, scratch, "store", 2, ())
    assert [path.exists() for path in made] == [True, False]
