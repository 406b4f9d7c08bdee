"""spark/rescale.py without a session: tasks go on from the state with another number of them."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from streamsx.app.app import App
from streamsx.errors import (
    IncompatibleStore,
    NotFound,
    NotSupported,
    PartitionMismatch,
    SettingError,
    StoreCorrupt,
    StreamsxError,
)
from streamsx.protocol.partitioner import partition_of
from streamsx.spark.checkout import discard_all
from streamsx.spark.rescale import procedure, rescale
from streamsx.state.snapshot import newest
from streamsx.state.snapshot_files import open_files
from tests.support.snapshots import make
from tests.unit.spark import apps
from tests.unit.spark.conftest import Batches, Fed, driven, fed

Make = Callable[..., Batches]
APPS = "tests.unit.spark.apps"
KEEPER = f"{APPS}:keeper"


def edits(count: int, seed: int) -> list[tuple[str, str]]:
    draw = Random(seed)
    words = ["delete", *"abc"]
    return [(f"k{draw.randrange(200)}", draw.choice(words)) for _ in range(count)]


def records(given: list[tuple[str, str]], partitions: int, topic: str = "edits") -> list[Fed]:
    return [fed(topic, partitions, *each, at) for at, each in enumerate(given)]


@pytest.mark.parametrize(
    ("old", "new", "app", "topic"),
    [
        (6, 12, apps.next_keeper, "edits-12"),
        (3, 2, apps.keeper, "edits"),
        (2, 2, apps.next_keeper, "edits-12"),
        (4, 7, apps.keeper, "edits"),
    ],
)
def test_rescaled_keys_land_once_in_partition_and_tasks_continue(
    batches: Make, tmp_path: Path, old: int, new: int, app: App, topic: str
) -> None:
    before = batches(KEEPER, edits=old)
    before.batch(before.rows(records(edits(400, 1), old)))
    before.batch(before.rows(records(edits(400, 2), old)))
    name = KEEPER if app is apps.keeper else f"{APPS}:next_keeper"
    after = batches(name, **{topic: new})
    manifest = rescale(name, before.uri, after.uri, {topic: new}, scratch=str(tmp_path))
    assert newest(after.files) == manifest
    assert (manifest.app, manifest.made_by) == (app.conf.id, "rescale")
    assert (manifest.partitions, manifest.positions) == ({topic: new}, {})
    store = manifest.stores["kept"]
    assert store.layout == app.tables["kept"].node().layout(new)
    assert sorted(store.partitions) == list(range(new))
    assert {part.changelog_next for part in store.partitions.values()} == {None}
    assert store.changelog_id is None
    keys = [
        (key[2:-1], partition) for (_, partition), rows in after.stored().items() for key, _ in rows
    ]
    assert len({key for key, _ in keys}) == len(keys) > 100
    assert all(partition_of(key, new) == partition for key, partition in keys)
    after.batch(after.rows(records(edits(400, 3), new, topic)))
    all_edits = [each for seed in (1, 2, 3) for each in edits(400, seed)]
    assert after.stored() == driven(app, records(all_edits, new, topic), {topic: new})


def test_unchanged_topic_keeps_positions(batches: Make, tmp_path: Path) -> None:
    before = batches(KEEPER, edits=3)
    made = before.batch(before.rows(records(edits(400, 1), 3)))
    same = rescale(KEEPER, before.uri, str(tmp_path / "same"), {}, scratch=str(tmp_path))
    assert same.positions == made.positions
    assert len(procedure(KEEPER, before.uri, str(tmp_path / "same"))) == 2


def test_rescale_without_positions_is_refused(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b'"a"': b"1"}
    layout = apps.keeper.tables["kept"].node().layout(1)
    uri, target = str(tmp_path / "made"), tmp_path / "target"
    make(uri, tmp_path, "keeper", "kept", layout, {0: ([rows], 1)}, {"edits": 1})
    with pytest.raises(IncompatibleStore, match=r"without positions: .* --from group"):
        rescale(KEEPER, uri, str(target), {"edits": 3})
    assert not target.exists()


@pytest.mark.parametrize("old", [1, 2, 4])
def test_table_not_keyed_by_topic_is_refused(batches: Make, tmp_path: Path, old: int) -> None:
    """However many partitions there were, and however few rows."""
    name, target = f"{APPS}:regrouped", tmp_path / "target"
    before = batches(name, edits=old)
    few = [(f"k{n}", word) for n in range(20) for word in ("pen", "cup")]
    before.batch(before.rows(records(few, old)))

    def refused(said: str, error: type[StreamsxError] = NotSupported, **keyed: str) -> None:
        with pytest.raises(error, match=said):
            rescale(name, before.uri, str(target), {"edits": 6}, keyed=keyed, scratch=str(tmp_path))
        assert not target.exists()

    refused("cut anew: store by_value")
    refused("no such store and topic: by_value=none", NotFound, by_value="none")
    refused("no such store and topic: none=edits", NotFound, none="edits")
    if old > 1:
        refused("by murmur2 of . partitions, found by_value-", by_value="edits")


def test_keyed_option_decides_where_rows_cannot_show_the_key(batches: Make, tmp_path: Path) -> None:
    before = batches(KEEPER, edits=1)
    before.batch(before.rows(records(edits(400, 1), 1)))
    after = batches(KEEPER, edits=6)
    with pytest.raises(NotSupported, match=r"keys in 1 partitions.* give --keyed kept=edits if"):
        rescale(KEEPER, before.uri, after.uri, {"edits": 6}, scratch=str(tmp_path))
    said = {"kept": "edits"}
    rescale(KEEPER, before.uri, after.uri, {"edits": 6}, keyed=said, scratch=str(tmp_path))
    assert after.stored() == driven(apps.keeper, records(edits(400, 1), 6), {"edits": 6})


def test_rescale_refuses_invalid_source_before_writing(batches: Make, tmp_path: Path) -> None:
    before = batches(KEEPER, edits=2)
    before.batch(before.rows(records(edits(50, 1), 2)))
    astray = batches(KEEPER, edits=2)
    astray.batch(astray.rows([Fed("edits", n % 2, n, b"k%d" % n, b"a") for n in range(20)]))
    torn = batches(KEEPER, edits=2)
    made = torn.batch(torn.rows(records(edits(50, 1), 2)))
    file = Path(torn.uri, made.stores["kept"].partitions[1].chain[0].file)
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:-1] + b"?")
    other = batches("tests.unit.spark.apps:paired")
    other.batch(other.rows([Fed("lefts", n, n, None, b"a") for n in (0, 1)]))
    target = tmp_path / "target"

    def refused(source: str, error: type[StreamsxError], said: str, **partitions: int) -> None:
        with pytest.raises(error, match=said):
            rescale(KEEPER, source, str(target), partitions or {"edits": 3}, scratch=str(tmp_path))
        assert not target.exists()

    refused(astray.uri, NotSupported, r"cut anew: store kept: .* found kept-0: b'\"k\d+\"': read")
    refused(before.uri, NotFound, "no such topic: orders: app keeper reads edits", orders=3)
    refused(other.uri, IncompatibleStore, "another app: .*expected keeper, found paired")
    refused(str(tmp_path / "nothing"), NotFound, "found none: make one")
    discard_all()  # nobody has it in a cache
    with pytest.raises(StoreCorrupt, match="torn file in a snapshot"):
        rescale(KEEPER, torn.uri, str(target), {"edits": 3}, scratch=str(tmp_path / "new"))
    assert not target.exists()
    with pytest.raises(SettingError, match="snapshots exist already"):
        rescale(KEEPER, before.uri, before.uri, {"edits": 3})
    assert newest(open_files(before.uri)) == newest(before.files)
    pair = str(tmp_path / "pair")
    with pytest.raises(PartitionMismatch):
        rescale("tests.unit.spark.apps:paired", other.uri, pair, {"lefts": 3})
