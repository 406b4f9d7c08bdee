"""state/directory.py: who holds it, what survives in it."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from streamsx.state.directory import StateDirectory


def test_a_second_process_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
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


def test_workers_in_one_folder_take_the_first_free_slot_and_find_it_again(tmp_path: Path) -> None:
    first = StateDirectory.first_free(tmp_path, "shop")
    second = StateDirectory.first_free(tmp_path, "shop")
    assert (first.root.name, second.root.name) == ("0", "1")
    first.release()
    third = StateDirectory.first_free(tmp_path, "shop")
    assert third.root.name == "0"
    second.release()
    third.release()


def test_ids_are_drawn_by_whoever_was_given_for_that(tmp_path: Path) -> None:
    numbers = iter(range(1, 3))
    directory = StateDirectory(tmp_path, "shop", lambda: UUID(int=next(numbers)))
    assert directory.process_id == UUID(int=1)
    directory.store("counts", 0).mkdir(parents=True)
    assert directory.discard(directory.store("counts", 0)).name == UUID(int=2).hex
    directory.release()


def test_names_survive_a_restart(tmp_path: Path) -> None:
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
def test_a_predecessor_is_of_this_group_and_host(
    tmp_path: Path, group: str, host: str, found: str | None
) -> None:
    directory = StateDirectory(tmp_path, "shop")
    directory.remember_member("shop", "m-1", "h")
    assert directory.predecessor(group, host) == found
    directory.forget_member()
    assert directory.predecessor(group, host) is None
    directory.release()


def test_a_torn_file_is_as_good_as_none(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    (directory.path / "member.json").write_text('{"gro')
    assert directory.predecessor("shop", "h") is None
    directory.release()


def test_stores_are_listed_until_they_are_discarded(tmp_path: Path) -> None:
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


def test_the_topic_that_a_tables_stores_are_made_from_is_no_store(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    assert directory.changelog_id("totals") is None
    directory.remember_changelog("totals", "shop-totals-changelog", b"i" * 16)
    assert directory.changelog_id("totals") == b"i" * 16
    assert list(directory.stores()) == []
    directory.release()


def test_ids_of_sources_are_there_at_the_next_start(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    assert directory.source_ids() == {}
    directory.remember_sources({"orders": "0a" * 16})
    directory.release()
    again = StateDirectory(tmp_path, "shop")
    assert again.source_ids() == {"orders": "0a" * 16}
    again.release()
