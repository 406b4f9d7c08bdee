"""Workers of one folder: a worker that is back after a kill finds its own stores."""

from pathlib import Path

from tests.support.workers import Workers

NOBODY = "127.0.0.1:1"
"""No broker: a slot is taken before one is asked for."""


def test_instance_returns_to_the_same_slot_after_kill_9(tmp_path: Path) -> None:
    """Workers k, l and m have slots 0 to 2; l leaves; m is killed and starts again."""
    with Workers(NOBODY, tmp_path, in_slots=True) as workers:

        def slot(name: str, count: int = 1) -> str:
            started = workers.until_event("worker_started", of=name, count=count)
            return Path(str(started["directory"])).parent.name

        for name in "klm":
            workers.start(name)
            slot(name)
        assert workers.stop("l") == [0]
        workers.kill("m")
        workers.start("m")
        assert (slot("k"), slot("l"), slot("m"), slot("m", count=2)) == ("0", "1", "2", "2")
        assert "its own slot is taken" not in workers.log("m")


def test_second_process_of_an_instance_logs_the_slot_taken(tmp_path: Path) -> None:
    first_folder, second_folder = tmp_path / "first", tmp_path / "second"
    with (
        Workers(NOBODY, first_folder, in_slots=True) as first,
        Workers(NOBODY, second_folder, in_slots=True) as second,
    ):
        first.start("k")
        first.until_event("worker_started")
        (slots,) = first_folder.glob("*-data")
        (second_folder / slots.name).symlink_to(slots)
        second.start("k")
        second.until_event("worker_started")
        why = "Worker k begins in slot 1, with the state that is there: its own slot is taken: "
        assert why in second.log("k")
        assert f"process {first.pid('k')} holds it" in second.log("k")
