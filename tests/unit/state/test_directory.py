"""state/directory.py: the lock of a state directory, and what survives in it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.names import labels
from streamsx.state.directory import StateDirectory


def test_second_process_is_refused_with_pid_of_first(tmp_path: Path) -> None:
    held = StateDirectory(tmp_path, "shop")
    code = (
        "import sys; from pathlib import Path; "
        "from streamsx.state.directory import StateDirectory; "
        "StateDirectory(Path(sys.argv[1]), 'shop')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert f"process {os.getpid()} holds it" in done.stderr
    held.release()
    StateDirectory(tmp_path, "shop").release()


def test_label_of_a_shared_name_begins_the_process_id_of_its_directory(tmp_path: Path) -> None:
    held = [StateDirectory(tmp_path / slot, "shop") for slot in "01"]
    told = labels(MemberMetadata(str(n), "a", each.process_id.hex) for n, each in enumerate(held))
    for label, each in zip(told.values(), held, strict=True):
        each.name_instance("a")
        known = json.loads((each.path / "process.json").read_text())
        assert known["process_id"].startswith(label.removeprefix("a@"))
        each.release()


def test_workers_in_one_folder_take_first_free_slot(tmp_path: Path) -> None:
    first = StateDirectory.in_slot(tmp_path, "shop")
    second = StateDirectory.in_slot(tmp_path, "shop")
    assert (first.root.name, second.root.name) == ("0", "1")
    first.release()
    third = StateDirectory.in_slot(tmp_path, "shop")
    assert third.root.name == "0"
    second.release()
    third.release()


def named(base: Path, instance: str) -> StateDirectory:
    """Return the directory of an instance that starts."""
    directory = StateDirectory.in_slot(base, "shop", instance)
    directory.name_instance(instance)
    return directory


def slots(*held: StateDirectory) -> list[str]:
    return [each.root.name for each in held]


def test_returning_instance_takes_own_slot_over_first_free_one(
    tmp_path: Path,
) -> None:
    k, left, m = (named(tmp_path, name) for name in "klm")
    left.release()
    m.release()
    again = named(tmp_path, "m")
    new = named(tmp_path, "n")
    assert slots(k, left, m, again, new) == ["0", "1", "2", "2", "1"]
    new.release()
    late = named(tmp_path, "l")
    assert slots(late) == ["1"], "its own was given away: the first free one"
    for each in k, again, late:
        each.release()


def test_second_process_of_instance_takes_other_slot_with_reason(
    tmp_path: Path,
) -> None:
    first, second = named(tmp_path, "k"), named(tmp_path, "k")
    assert slots(first, second) == ["0", "1"]
    assert first.own_slot_taken == ""
    assert f"process {os.getpid()} holds it" in second.own_slot_taken
    first.release()
    second.release()
    os.utime(tmp_path / "0" / "shop" / "process.json", (1, 1))
    again = named(tmp_path, "k")
    assert slots(again) == ["1"], "the one that began last"
    again.release()


@pytest.mark.parametrize("spoilt", ["", "[]", '{"format": 1}'])
def test_slot_with_torn_names_belongs_to_no_instance(tmp_path: Path, spoilt: str) -> None:
    k, m = named(tmp_path, "k"), named(tmp_path, "m")
    (m.path / "process.json").write_text(spoilt)
    m.release()
    again = named(tmp_path, "m")
    assert slots(again) == ["1"], "the first free one"
    k.release()
    again.release()


def test_slot_of_other_app_or_file_is_not_own_slot(tmp_path: Path) -> None:
    other = StateDirectory(tmp_path / "3", "other")
    other.name_instance("k")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "shop").write_text("no folder")
    k = named(tmp_path, "k")
    assert slots(k) == ["0"]
    k.release()
    other.release()


def test_instance_without_id_takes_first_free_slot_and_name(tmp_path: Path) -> None:
    k, m = named(tmp_path, "k"), named(tmp_path, "m")
    k.release()
    m.release()
    found = StateDirectory.in_slot(tmp_path, "shop")
    assert (found.root.name, found.instance_id) == ("0", "k")
    found.release()


def test_directory_draws_ids_from_given_factory(tmp_path: Path) -> None:
    numbers = iter(range(1, 3))
    directory = StateDirectory(tmp_path, "shop", lambda: UUID(int=next(numbers)))
    assert directory.process_id == UUID(int=1)
    directory.store("counts", 0).mkdir(parents=True)
    assert directory.discard(directory.store("counts", 0)).name == UUID(int=2).hex
    directory.release()


def test_process_and_instance_ids_survive_restart(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path, "shop")
    first.name_instance("a")
    first.release()
    again = StateDirectory(tmp_path, "shop")
    assert (again.process_id, again.instance_id) == (first.process_id, "a")
    again.release()


@pytest.mark.parametrize(
    ("group", "host", "found"),
    [("shop", "h", "m-1"), ("other", "h", None), ("shop", "copied-to", None)],
)
def test_predecessor_must_match_group_and_host(
    tmp_path: Path, group: str, host: str, found: str | None
) -> None:
    directory = StateDirectory(tmp_path, "shop")
    directory.remember_member("shop", "m-1", "h")
    assert directory.predecessor(group, host) == found
    directory.forget_member()
    assert directory.predecessor(group, host) is None
    directory.release()


def test_torn_member_file_counts_as_missing(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    (directory.path / "member.json").write_text('{"gro')
    assert directory.predecessor("shop", "h") is None
    directory.release()


def test_stores_are_listed_until_discarded(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    for name, partition in (("counts", 10), ("counts", 2), ("totals", 0)):
        directory.store(name, partition).mkdir(parents=True)
    assert sorted(directory.stores()) == [("counts", 2), ("counts", 10), ("totals", 0)]
    discarded = directory.discard(directory.store("counts", 2))
    assert ("counts", 2) not in set(directory.stores())
    directory.discard(directory.store("counts", 10))
    directory.delete(discarded)
    assert not discarded.exists()
    assert list(directory.stores()) == [("totals", 0)]
    directory.empty_trash()
    assert not (directory.path / "trash").exists()
    directory.release()


def test_remembered_changelog_id_is_not_listed_as_store(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    assert directory.changelog_id("totals") is None
    directory.remember_changelog("totals", "shop-totals-changelog", b"i" * 16)
    assert directory.changelog_id("totals") == b"i" * 16
    assert list(directory.stores()) == []
    directory.release()


def test_source_ids_and_counts_survive_restart(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    assert directory.source_ids() == {}
    directory.remember_sources({"orders": "0a" * 16}, {"orders": 4})
    directory.release()
    again = StateDirectory(tmp_path, "shop")
    assert again.source_ids() == {"orders": "0a" * 16}
    assert again.source_counts() == {"orders": 4}
    again.release()
