"""Workers with empty stores, and snapshots that fit or do not fit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamsx.model import TaskId
from streamsx.state.snapshot import (
    Manifest,
    Position,
    StoreSnapshot,
    collect_garbage,
    commit,
    manifest_name,
    newest,
)
from streamsx.state.snapshot_files import open_files
from streamsx.tasks import snapshot_restore as module
from streamsx.tasks.snapshot_restore import LOOK_EVERY_S, THREADS, Beside
from streamsx.tasks.state_machine import TaskState
from tests.support.snapshots import chain_of, make
from tests.unit.conftest import ROWS_PER_BATCH, app_of, changelog, counting

if TYPE_CHECKING:
    from streamsx import App
    from tests.unit.conftest import VirtualCluster, WorkerHarness

Break = Callable[[Manifest, Path], None]
T0, T1, T2 = TASKS = [TaskId(0, n) for n in range(3)]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/snapshots"


def layout_of(app: App) -> str:
    (plan,) = app.topology().subtopologies
    return plan.stores[0].layout(3)


def snapshot(bench: VirtualCluster, uri: str, *, positions: int | None = None) -> Manifest:
    """Make a snapshot of the first batch of each of two changelogs."""
    for n in range(3):
        bench.remember(changelog(n), 1, b"1%d")
    parts = {n: (chain_of(bench.read(changelog(n))), ROWS_PER_BATCH) for n in range(3)}
    for n in range(3):
        bench.remember(changelog(n), 1, b"%d")
    at = {"words": {0: Position(positions)}} if positions is not None else {}
    layout = layout_of(counting())
    return make(uri, bench.folder, "t", "counts", layout, parts, {"words": 3}, at)


def begun(bench: VirtualCluster, uri: str) -> WorkerHarness:
    """Start a worker that runs all three tasks."""
    station = bench.begun(counting(snapshot=uri))
    since = bench.scheduler.now
    station.hand.plan(*TASKS)
    bench.until(lambda: all(station.states(task)[-1:] == ["running"] for task in TASKS))
    station.since = since  # type: ignore[attr-defined]
    return station


def read_from(bench: VirtualCluster, station: WorkerHarness) -> dict[int, int]:
    """Return the first fetched offset of each changelog."""
    first: dict[int, int] = {}
    for tp, offset in bench.fetched(station.since):  # type: ignore[attr-defined]
        if tp.topic.endswith("changelog"):
            first.setdefault(tp.partition, offset)
    return first


@pytest.fixture
def logs(bench: VirtualCluster) -> VirtualCluster:
    """Create the changelogs."""
    service, compacted = bench.broker.service, {"cleanup.policy": "compact"}
    named = service.fresh_id().bytes
    bench.at_broker(lambda: service.topics.create(changelog(0).topic, named, 3, compacted))
    bench.run(0.01)
    return bench


def test_empty_store_starts_from_the_snapshot_and_reads_only_later_rows(
    logs: VirtualCluster, uri: str
) -> None:
    snapshot(logs, uri)
    station = begun(logs, uri)
    assert read_from(logs, station) == dict.fromkeys(range(3), ROWS_PER_BATCH)
    for n in range(3):
        assert station.rows(n) == {f"{i:06}": b"%d" % i for i in range(ROWS_PER_BATCH)}
    told = station.told("snapshot_fetched")
    assert {(each["task"], each["rows"], each["position"]) for each in told} == {
        (str(task), ROWS_PER_BATCH, ROWS_PER_BATCH) for task in TASKS
    }
    assert station.told("error") == []
    logs.until(lambda: not any(logs.folder.glob("w1/t/trash/*")))


def test_learner_starts_from_the_snapshot_too(logs: VirtualCluster, uri: str) -> None:
    snapshot(logs, uri)
    station = logs.begun(counting(snapshot=uri))
    station.hand.plan(learners=[T1])
    logs.until(lambda: station.told("learner_ready"))
    assert [told["task"] for told in station.told("snapshot_fetched")] == [str(T1)]
    logs.run(0.5)
    assert station.position(1) == 2 * ROWS_PER_BATCH


def test_store_with_rows_ignores_the_snapshot(logs: VirtualCluster, uri: str) -> None:
    snapshot(logs, uri)
    first = begun(logs, uri)
    first.process.kill()
    second = logs.station(counting(snapshot=uri), "w1", stores=first.stores)
    logs.until(lambda: second.hand.alive)
    second.hand.plan(*TASKS)
    logs.until(lambda: second.states(T2)[-1:] == ["running"])
    assert second.told("snapshot_fetched") == []


def test_rows_of_an_interrupted_restore_are_replaced_by_the_snapshot(
    logs: VirtualCluster, uri: str
) -> None:
    snapshot(logs, uri)
    first = begun(logs, uri)
    first.process.kill()
    for kept in first.stores.values():
        kept.wipe()
        kept.write({b'\x01"not there any more"': b"1"}, None)
    second = logs.station(counting(snapshot=uri), "w1", stores=first.stores)
    logs.until(lambda: second.hand.alive)
    second.hand.plan(*TASKS)
    logs.until(lambda: second.states(T2)[-1:] == ["running"])
    assert len(second.told("snapshot_fetched")) == 3
    assert len(second.rows(0)) == ROWS_PER_BATCH


def anew(**changes: object) -> Break:
    """Return a change of the manifest."""

    def rewrite(manifest: Manifest, root: Path) -> None:
        path = root / manifest_name(0)
        path.write_bytes(replace(manifest, **changes).to_json())  # type: ignore[arg-type]

    return rewrite


def store(change: Callable[[StoreSnapshot], StoreSnapshot]) -> Break:
    """Return a change of the store's part of the manifest."""
    return lambda m, root: anew(stores={"counts": change(m.stores["counts"])})(m, root)


def after(position: int | None) -> Break:
    """Return a change of the position at which the changelog continues."""

    def change(found: StoreSnapshot) -> StoreSnapshot:
        parts = {n: p._replace(changelog_next=position) for n, p in found.partitions.items()}
        return found._replace(partitions=parts)

    return store(change)


def cut(manifest: Manifest, root: Path) -> None:
    for sst in (root / "sst").rglob("*.sst"):
        sst.write_bytes(sst.read_bytes()[:-1])


def lose(manifest: Manifest, root: Path) -> None:
    for sst in (root / "sst").rglob("*.sst"):
        sst.unlink()


def edit(change: Callable[[bytes], bytes]) -> Break:
    def rewrite(_: Manifest, root: Path) -> None:
        path = root / manifest_name(0)
        path.write_bytes(change(path.read_bytes()))

    return rewrite


BAD: dict[str, tuple[Break, str]] = {
    "app": (anew(app="shop"), "expected t, found shop"),
    "partitions": (anew(partitions={"words": 4}), "expected {'words': 3}, found {'words': 4}"),
    "layout": (
        store(lambda s: s._replace(layout=s.layout.replace("json", "avro"))),
        "snapshot of another layout",
    ),
    "kind": (
        store(lambda s: s._replace(layout=s.layout.replace('"kv"', '"window"'))),
        '"store":"window"',
    ),
    "format": (edit(lambda b: b.replace(b'"format":1', b'"format":9', 1)), "expected 1, found 9"),
    "torn manifest": (edit(lambda b: b[:100]), "not a manifest"),
    "torn file": (cut, "torn file in a snapshot"),
    "lost file": (lose, "No such file"),
    "behind the end": (after(1001), " at 0 to 1000, found 1001"),
    "made anew": (store(lambda s: s._replace(changelog_id="00")), "another changelog"),
    "too old": (anew(made_at_ms=0), "snapshot too old"),
    "not published": (after(None), "snapshot not published"),
    "none": (
        lambda _, root: (root / manifest_name(0)).unlink(),
        "expected manifests/NUMBER.json, found none",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_unfit_snapshot_is_reported_and_changelog_replayed(
    logs: VirtualCluster, uri: str, what: str
) -> None:
    spoil, told = BAD[what]
    spoil(snapshot(logs, uri), logs.folder / "snapshots")
    station = begun(logs, uri)
    assert read_from(logs, station) == dict.fromkeys(range(3), 0)
    for n in range(3):
        assert station.rows(n) == {f"{i:06}": b"%d" % i for i in range(ROWS_PER_BATCH)}
    errors = [str(each["what"]) for each in station.told("error")]
    assert all(told in each and each.endswith(": replaying the changelog") for each in errors)
    assert len(errors) == len(set(errors)) > 0, "each thing is said once"
    assert station.told("snapshot_fetched") == []
    assert not any(logs.folder.glob("w1/t/trash/*"))


def test_state_held_only_by_a_snapshot_is_not_started_without_the_snapshot(
    logs: VirtualCluster, uri: str
) -> None:
    """The state was rescaled and not handed over: an empty changelog would be replayed."""
    layout, parts = layout_of(counting()), {n: ([{b'"a"': b"1"}], None) for n in range(3)}
    make(uri, logs.folder, "t", "counts", layout, parts, {"words": 3})
    station = logs.begun(counting(snapshot=uri))
    station.hand.plan(T0)
    logs.until(lambda: station.told("error"))
    (told,) = station.told("error")
    assert "state was not handed over: snapshot not published: " in str(told["what"])
    assert "replaying" not in str(told["what"])


def test_snapshot_collected_after_lookup_is_reported_and_changelog_replayed(
    logs: VirtualCluster, uri: str
) -> None:
    """Many snapshots were committed since another task opened with the newest one of that time."""
    manifest, files = snapshot(logs, uri), open_files(uri)
    station = logs.begun(counting(snapshot=uri))
    station.hand.plan(T0)
    logs.until(lambda: station.states(T0)[-1:] == ["running"])
    for number in range(1, 17):
        made = replace(manifest, number=number, stores={})
        commit(files, made, before=newest(files))
    collect_garbage(files, keep=10)
    since = station.since = logs.scheduler.now  # type: ignore[attr-defined]
    station.hand.plan(*TASKS)
    logs.until(lambda: all(station.states(task)[-1:] == ["running"] for task in TASKS))
    assert logs.scheduler.now - since < LOOK_EVERY_S
    assert [told["task"] for told in station.told("snapshot_fetched")] == [str(T0)]
    errors = sorted(str(told["what"]) for told in station.told("error"))
    for n, told in zip((1, 2), errors, strict=True):
        assert f"sst/counts/{n}/" in told
        assert told.endswith("replaying the changelog")
        assert read_from(logs, station)[n] == 0
        assert len(station.rows(n)) == ROWS_PER_BATCH


def test_snapshot_ending_before_the_changelog_start_is_reported_and_unused(
    logs: VirtualCluster, uri: str
) -> None:
    """Records between them are gone: the store would miss them."""
    snapshot(logs, uri)
    start = ROWS_PER_BATCH + 1
    for n in range(3):
        logs.at_broker(partial(logs.log(changelog(n)).delete_before, start))
    station = begun(logs, uri)
    assert read_from(logs, station) == dict.fromkeys(range(3), start)
    told = " ".join(str(each["what"]) for each in station.told("error"))
    for n in range(3):
        assert f"expected counts-{n} at {start} to 1000, found {ROWS_PER_BATCH}: make" in told
    assert station.told("snapshot_fetched") == []


def test_unreachable_snapshot_location_is_reported_and_changelog_replayed(
    logs: VirtualCluster,
) -> None:
    snapshot(logs, f"file://{logs.folder}/elsewhere")
    station = begun(logs, "foo://key:geheim@nowhere")
    (told,) = station.told("error")
    assert "cannot reach foo: foo://***@nowhere" in str(told["what"])
    assert read_from(logs, station) == dict.fromkeys(range(3), 0)


def test_uncommitted_records_in_a_snapshot_are_reported_to_count_twice(
    logs: VirtualCluster, uri: str
) -> None:
    for _ in range(7):
        logs.feed(0, "a")
    snapshot(logs, uri, positions=5)
    station = begun(logs, uri)
    (told,) = station.told("error")
    assert "snapshot 0: 5 records in it are not committed and count twice" in str(told["what"])
    assert len(station.told("snapshot_fetched")) == 3


def test_task_revoked_while_reading_a_snapshot_is_released_at_once(
    logs: VirtualCluster, uri: str
) -> None:
    snapshot(logs, uri)
    station = logs.begun(counting(snapshot=uri))
    logs.scheduler.disk_s = 1e9
    station.hand.plan(T0)
    logs.run(0.5)
    assert station.states(T0)[-1:] == ["opening"]
    logs.scheduler.disk_s = 0.001
    station.hand.revoke(T0)
    logs.until(station.hand.released, 1)
    logs.until(lambda: station.states(T0)[-1] == "closed", 5)
    logs.run(100)
    assert station.told("error") == station.told("snapshot_fetched") == []


def test_task_revoked_right_after_the_snapshot_leaves_the_worker_running(
    logs: VirtualCluster, uri: str
) -> None:
    """The empty store is deleted meanwhile."""
    snapshot(logs, uri)
    station = logs.begun(counting(snapshot=uri))
    logs.scheduler.disk_s = 3
    station.hand.plan(T0)
    logs.until(lambda: station.told("snapshot_fetched"), 1000)
    logs.scheduler.disk_s = 0.001
    station.hand.revoke(T0)
    logs.until(lambda: station.states(T0)[-1] == "closed", 5)
    station.hand.plan(T1)
    logs.until(lambda: station.states(T1)[-1:] == ["running"])
    assert station.told("error") == []


def test_tasks_revoked_while_waiting_for_a_snapshot_close_independently(
    logs: VirtualCluster, uri: str
) -> None:
    """All tasks wait for the one look at the place of the snapshots."""
    snapshot(logs, uri)
    station = logs.begun(counting(snapshot=uri))
    logs.scheduler.disk_s = 1e9
    station.hand.plan(*TASKS)
    logs.run(0.1)
    station.hand.revoke(*TASKS)
    logs.run(0.6)
    held = station.made.registry
    assert {held.of(task).state for task in TASKS} == {TaskState.CLOSING}


def test_silent_snapshot_location_is_reported_and_changelog_replayed(
    logs: VirtualCluster, uri: str
) -> None:
    snapshot(logs, uri)
    station = logs.begun(counting(snapshot=uri))
    since = station.since = logs.scheduler.now  # type: ignore[attr-defined]
    logs.scheduler.disk_s = 1e9
    station.hand.plan(*TASKS)
    logs.until(lambda: all(station.states(task)[-1:] == ["running"] for task in TASKS), 45)
    assert logs.scheduler.now - since > 30
    (told,) = station.told("error")
    assert "snapshot not read: no answer in 30 s" in str(told["what"])
    assert read_from(logs, station) == dict.fromkeys(range(3), 0)


def test_blocked_snapshot_thread_does_not_block_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read that is never answered, with jobs behind it."""
    monkeypatch.setattr(module, "CLOSE_MAX_S", 0.01)
    beside, held = Beside(), threading.Event()
    jobs = [beside.submit(held.wait) for _ in range(THREADS + 1)]
    jobs[-1].cancel()
    beside.close()
    assert not any(job.done() for job in jobs[:-1])
    assert all(each.daemon for each in threading.enumerate() if each.name == "snapshot")
    held.set()
    monkeypatch.setattr(module, "CLOSE_MAX_S", 60)
    beside.close()
    assert all(job.done() for job in jobs)


def test_snapshot_with_the_changelogs_topic_id_is_accepted(logs: VirtualCluster, uri: str) -> None:
    manifest = snapshot(logs, uri)
    changelog_id = logs.broker.service.topics.by_name[changelog(0).topic].id.hex()
    store(lambda s: s._replace(changelog_id=changelog_id))(manifest, logs.folder / "snapshots")
    station = begun(logs, uri)
    assert (len(station.told("snapshot_fetched")), station.told("error")) == (3, [])


def test_tables_in_memory_are_replayed_from_the_changelog(logs: VirtualCluster, uri: str) -> None:
    snapshot(logs, uri)
    assert newest(open_files(uri)) is not None
    station = logs.begun(counting(snapshot=uri, store="memory://"))
    station.hand.plan(*TASKS)
    logs.until(lambda: station.states(T2)[-1:] == ["running"])
    assert station.told("error") == station.told("snapshot_fetched") == []
    assert app_of().conf.snapshot is None
