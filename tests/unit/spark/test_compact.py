"""spark/compact.py without a session: what is written, and what is refused before that."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from streamsx.client import admin
from streamsx.errors import (
    IncompatibleStore,
    NotFound,
    PartitionCountChanged,
    SettingError,
    StoreCorrupt,
    StreamsxError,
)
from streamsx.model import TopicPartition
from streamsx.spark.checkout import checkout, discard_all, scratch_folder
from streamsx.spark.compact import compact, sizes
from streamsx.spark.source import SourceOptions
from streamsx.spark.stored import PAIRS, asked_stores, in_changelogs, in_snapshot
from streamsx.state.api import ROW
from streamsx.state.snapshot import Manifest, Part, Position, newest
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from tests.support.client import Client
from tests.support.snapshots import make
from tests.unit.spark.apps import keeper

APP = "tests.unit.spark.apps:keeper"
LOG = "keeper-kept-changelog"
LAYOUT = keeper.tables["kept"].node().layout(3)
Pairs = list[tuple[bytes | None, bytes | None]]
Parts = dict[int, tuple[list[Mapping[bytes, bytes | None]], int | None]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"edits": 3, LOG: 3}) as made:
        yield made
    discard_all()


def write(broker: Broker, partition: int, records: Pairs) -> None:
    client = Client(broker.bootstrap)
    client.send(TopicPartition(LOG, partition), records)
    client.close()


def stored(uri: str, scratch: Path) -> dict[int, Pairs]:
    _, parts = in_snapshot(asked_stores(APP), uri, str(scratch))
    found = {}
    for part in parts:
        batches = [batch.to_pydict() for batch in part.rows()]
        pairs = (zip(each["key"], each["value"], strict=True) for each in batches)
        found[part.partition] = [pair for each in pairs for pair in each]
    return found


def test_compacted_snapshot_equals_replay_and_continues_changelog(
    broker: Broker, tmp_path: Path
) -> None:
    write(broker, 0, [(b'"b"', b'"1"'), (b'"a"', b'"2"'), (None, b"x"), (b'"b"', b'"3"')])
    write(broker, 1, [(b'"c"', b'"4"'), (b'"c"', None)])
    uri = str(tmp_path / "state")
    first = compact(APP, uri, brokers=broker.bootstrap, scratch=str(tmp_path))
    assert stored(uri, tmp_path) == {
        0: [(ROW + b'"a"', b'"2"'), (ROW + b'"b"', b'"3"')], 1: [], 2: [],
    }  # fmt: skip
    parts = first.stores["kept"].partitions
    assert [part.changelog_next for part in parts.values()] == [4, 2, 0]
    assert [file.full for file in parts[0].chain] == [True]
    assert parts[2] == Part((), 0)
    assert (first.made_by, first.partitions) == ("compact", {"edits": 3})
    ids = SourceOptions({"kafka.bootstrap.servers": broker.bootstrap}).ask(
        lambda cluster: admin.topic_ids(cluster, [LOG])
    )
    assert first.stores["kept"].changelog_id == (ids[LOG] or b"").hex() != ""
    assert sizes(first) == {
        "number": 0, "tasks": 3, "rows": 2, "bytes": parts[0].chain[0].bytes,
    }  # fmt: skip
    write(broker, 2, [(b'"d"', b'"5"')])
    second = compact(APP, uri, brokers=broker.bootstrap, stores=["kept"], scratch=str(tmp_path))
    assert newest(open_files(uri)) == second
    assert stored(uri, tmp_path)[2] == [(ROW + b'"d"', b'"5"')]


class Killed(NamedTuple):
    """Exception of a process that ends in the middle of its rows."""

    store: str = "kept"
    partition: int = 0

    def rows(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"key": [ROW + b"a"], "value": [b"1"]}, PAIRS)
        os.kill(os.getpid(), signal.SIGKILL)


def test_files_of_killed_process_are_removed_by_next_one(tmp_path: Path) -> None:
    place = APP, str(tmp_path / "state"), 0, str(tmp_path)
    code = f"""
from streamsx.spark.compact import write
from tests.unit.spark.test_compact import Killed
write(*{place!r}, Killed())
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    scratch = scratch_folder(str(tmp_path))
    (left,) = scratch.rglob("tmp*/0")
    checkout(open_files(place[1]), scratch, "kept", 0, ())
    assert not left.exists()
    assert list(scratch.rglob("tmp*")) == []


def test_compact_refuses_to_drop_positions_or_stores_of_snapshot(
    broker: Broker, tmp_path: Path
) -> None:
    uri = str(tmp_path / "state")
    parts: Parts = {n: ([], 0) for n in range(3)}
    at = {"edits": {n: Position(5 + n) for n in range(9)}}
    run = make(uri, tmp_path, "keeper", "kept", LAYOUT, parts, {"edits": 3}, at)
    less = {"edits": {n: Position(9) for n in range(9) if n != 1}}
    for positions, lost in (
        (None, "edits-0, the position of edits-1, the position of edits-2 and 6 more"),
        (less, "edits-1"),
    ):
        said = f"snapshot would lose data: .*has the position of {lost}: write to ano"
        with pytest.raises(IncompatibleStore, match=said):
            compact(APP, uri, brokers=broker.bootstrap, positions=positions)
    assert newest(open_files(uri)) == run
    assert compact(APP, uri, brokers=broker.bootstrap, positions=at).positions == at
    other = str(tmp_path / "other")
    make(other, tmp_path, "keeper", "held", LAYOUT, parts, {"edits": 3})
    with pytest.raises(IncompatibleStore, match="made by compact, has store held: write"):
        compact(APP, other, brokers=broker.bootstrap)


def test_compact_refuses_mismatch_before_writing(broker: Broker, tmp_path: Path) -> None:
    def of(uri: str, **more: object) -> Callable[[], Manifest]:
        return lambda: compact(APP, uri, brokers=broker.bootstrap, **more)  # type: ignore[arg-type]

    make(other := str(tmp_path / "other"), tmp_path, "shop", "kept", LAYOUT, {}, {})
    later = tmp_path / "later" / "manifests"
    later.mkdir(parents=True)
    (later / f"{0:012}.json").write_text('{"format": 9}')
    for asked, error, said in (
        (of(other), IncompatibleStore, "expected keeper, found shop: write to another --out"),
        (of(str(later.parent)), IncompatibleStore, "expected 1, found 9"),
        (of("nowhere://x"), SettingError, "cannot reach nowhere: nowhere://x"),
        (of(str(tmp_path / "new"), stores=["none"]), NotFound, "app keeper has kept"),
    ):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error, match=said):
            asked()
        assert sorted(tmp_path.rglob("*")) == before
    with Broker(topics={"edits": 2, LOG: 3}) as uneven, pytest.raises(PartitionCountChanged):
        compact(APP, str(tmp_path / "new"), brokers=uneven.bootstrap)
    with Broker(topics={"edits": 2}) as bare, pytest.raises(NotFound, match=LOG):
        compact(APP, str(tmp_path / "new"), brokers=bare.bootstrap)
    assert not (tmp_path / "new").exists()


def test_snapshot_of_other_app_or_layout_is_refused(tmp_path: Path) -> None:
    asked = asked_stores(APP)
    parts: Parts = {n: ([], 0) for n in range(3)}
    cases: dict[str, tuple[str, str, str, Parts, str]] = {
        "app": ("shop", "kept", LAYOUT, parts, "another app: .*expected keeper, found shop"),
        "store": ("keeper", "held", LAYOUT, parts, "another layout: .*'kept'.*found {}"),
        "kind": ("keeper", "kept", LAYOUT.replace('"kv"', '"window"'), parts, "window"),
        "codec": ("keeper", "kept", LAYOUT.replace("json", "raw"), parts, '\'{.*"key":"raw"'),
        "count": ("keeper", "kept", LAYOUT, {0: ([], 0), 1: ([], 0)}, '"partitions":2.*:3'),
        "part": ("keeper", "kept", LAYOUT, {n: ([], 0) for n in (0, 1, 3)}, r"\[0, 1, 3\]"),
    }
    for name, (app, store, layout, held, said) in cases.items():
        make(str(tmp_path / name), tmp_path, app, store, layout, held, {"edits": 3})
        with pytest.raises(IncompatibleStore, match=said):
            in_snapshot(asked, str(tmp_path / name))
    with pytest.raises(NotFound, match="found none: make one"):
        in_snapshot(asked, str(tmp_path / "nothing"))


def test_torn_file_is_named_in_error(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b'"a"': b"1"}
    uri = str(tmp_path / "state")
    made = make(uri, tmp_path, "keeper", "kept", LAYOUT, {n: ([rows], 1) for n in range(3)}, {})
    name = made.stores["kept"].partitions[1].chain[0].file
    whole = (tmp_path / "state" / name).read_bytes()
    (tmp_path / "state" / name).unlink()
    (tmp_path / "state" / name).write_bytes(whole[:-1])
    with pytest.raises(StoreCorrupt, match=f"torn file in a snapshot: .*{name}"):
        stored(uri, tmp_path)
    discard_all()


def test_changelog_cut_after_listing_is_refused_when_read(
    broker: Broker,
) -> None:
    write(broker, 0, [(b'"a"', b"1")])
    _, parts = in_changelogs(asked_stores(APP), broker.bootstrap)
    gone = parts[0]._replace(log=parts[0].log._replace(end=5))
    with pytest.raises(StreamsxError, match="records are gone: keeper-kept-changelog-0"):
        list(gone.rows())
