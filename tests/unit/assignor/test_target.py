"""Quotas: members that give tasks, and members that get them."""

from collections.abc import Callable
from dataclasses import asdict

from streamsx.assignor.assign import look
from streamsx.assignor.model import Group, Memory, Rules, TaskKind
from streamsx.assignor.target import target_assignment
from streamsx.config import Config

Build = Callable[..., Group]


def target(group: Group, imbalance: float = 0) -> dict[str, str]:
    """Return the target tasks of each member."""
    view = look(group, Rules(acceptable_recovery_lag=10, imbalance_percentage=imbalance))
    found: dict[str, list[str]] = {str(member.instance): [] for member in view.members}
    for task, seat in sorted(target_assignment(view).items()):
        found[str(view.members[seat].instance)].append(str(task))
    return {name: " ".join(tasks) for name, tasks in found.items()}


def test_first_donor_gives_and_first_receiver_gets(group: Build) -> None:
    shape = group("0_0 0_1 0_2 0_3", a="owns 0_0 0_1", b="owns 0_2 0_3", c="", d="owns")

    assert target(shape) == {"a": "0_1", "b": "0_3", "c": "0_0", "d": "0_2"}


def test_unowned_tasks_are_dealt_round_robin(group: Build) -> None:
    assert target(group("0_0 0_1 0_2", a="", b="")) == {"a": "0_0 0_2", "b": "0_1"}


def test_shares_follow_capacity(group: Build) -> None:
    shape = group("0_0 0_1 0_2 0_3 0_4 0_5", a="capacity=2", b="")

    assert target(shape) == {"a": "0_0 0_2 0_4 0_5", "b": "0_1 0_3"}


def test_spare_seat_goes_to_a_member_with_a_copy(group: Build) -> None:
    shape = group("0_0 0_1 0_2", a="owns 0_0", b="owns 0_1 disk 0_2=500")

    assert target(shape) == {"a": "0_0", "b": "0_1 0_2"}


def test_spare_seat_without_a_copy_goes_to_the_first_waiting_member(group: Build) -> None:
    assert target(group("0_0 0_1 0_2", a="owns 0_0", b="owns 0_1")) == {
        "a": "0_0 0_2",
        "b": "0_1",
    }


def test_donor_gives_tasks_the_receiver_has_ready(group: Build) -> None:
    shape = group("0_0 0_1 0_2 0_3", a="owns 0_0 0_1 0_2 0_3", b="disk 0_2=5 0_3=11")

    assert target(shape) == {"a": "0_1 0_3", "b": "0_0 0_2"}


def test_donor_gives_the_task_a_member_waiting_for_a_spare_seat_has_ready(group: Build) -> None:
    shape = group("0_0 0_1 0_2 0_3 0_4", a="owns 0_0 0_1 0_2 0_3", b="owns 0_4 disk 0_3=0", c="")

    assert target(shape) == {"a": "0_1 0_2", "b": "0_3 0_4", "c": "0_0"}


def test_every_spare_seat_can_go_to_a_copy(group: Build) -> None:
    shape = group(
        "0_0 0_1 0_2 0_3 0_4", a="owns 0_0", b="owns 0_1 disk 0_3=9", c="owns 0_2 disk 0_4=9"
    )

    assert target(shape) == {"a": "0_0", "b": "0_1 0_3", "c": "0_2 0_4"}


def test_empty_member_comes_before_a_member_with_more_capacity(group: Build) -> None:
    assert target(group("0_0 0_1 0_2", a="capacity=3", b="")) == {"a": "0_0 0_2", "b": "0_1"}


def test_member_with_more_room_wins_among_equal_copies(group: Build) -> None:
    shape = group("0_0 1_0 2_0 2_1", a="owns 1_0 disk 0_0=9", b="disk 0_0=9")

    assert target(shape) == {"a": "1_0 2_0", "b": "0_0 2_1"}


def test_possible_spare_seat_counts_as_room(group: Build) -> None:
    shape = group("0_0 1_0", a="capacity=2 disk 0_0=9", b="disk 0_0=9", c="")

    assert target(shape) == {"a": "1_0", "b": "0_0", "c": ""}


def test_owner_or_promised_member_comes_before_a_nearer_copy(group: Build) -> None:
    promised = group("0_0 1_0", a="disk 0_0=0", b="disk 0_0=99 promised 0_0", c="leaving")
    owned = group("0_0 0_1 0_2", a="disk 0_0=0", b="owns 0_0", c="owns 0_1 0_2 learner 0_0=50")

    assert target(promised)["b"] == "0_0"
    assert target(owned) == {"a": "0_1", "b": "0_0", "c": "0_2"}


def test_pending_move_furthest_behind_is_given_back_first(group: Build) -> None:
    shape = group("0_0 0_1 0_2", a="owns 0_0 0_1", b="owns 0_2 learner 0_0=50 0_1=90")

    assert target(shape) == {"a": "0_1", "b": "0_0 0_2"}


def test_pending_moves_are_given_back_before_running_tasks(group: Build) -> None:
    """A promised task is given last, else the task with the largest lag first."""
    shape = group(
        "0_0 0_1 0_2 0_3 0_4",
        a="owns 0_0 0_1 0_2",
        b="owns 0_3 0_4 learner 0_0=90 0_1=50 0_2=99 promised 0_2",
    )

    assert target(shape) == {"a": "0_0 0_1", "b": "0_2 0_3 0_4"}


def test_donor_gives_from_the_subtopology_held_most(group: Build) -> None:
    shape = group("0_0 1_0 1_1 1_2", a="owns 0_0 1_0 1_1 1_2", b="")

    assert target(shape) == {"a": "0_0 1_2", "b": "1_0 1_1"}


def test_equally_near_copies_spread_a_subtopology(group: Build) -> None:
    """All workers start with all state on disk."""
    disk = "disk 0_0 0_1 1_0 1_1"

    assert target(group("0_0 0_1 1_0 1_1", a=disk, b=disk)) == {"a": "0_0 1_0", "b": "0_1 1_1"}


def test_nothing_moves_within_the_tolerance(group: Build) -> None:
    shape = group("0_0 0_1 0_2 0_3 0_4 0_5", a="owns 0_0 0_1 0_2 0_3", b="owns 0_4 0_5")

    assert target(shape, imbalance=0.4) == {"a": "0_0 0_1 0_2 0_3", "b": "0_4 0_5"}
    assert target(shape, imbalance=0.3) == {"a": "0_1 0_2 0_3", "b": "0_0 0_4 0_5"}
    assert target(shape, imbalance=1e308) == target(shape, imbalance=0.4)


def test_default_tolerance_allows_a_sixth_over_share_but_not_a_quarter(group: Build) -> None:
    """The default of imbalance_percentage."""
    config, rules = Config(id="a"), Rules()
    names = {"standby": "num_standby_replicas"}
    told = {name: getattr(config, names.get(name, name)) for name in rules.__slots__}
    assert told == asdict(rules)
    tasks = [f"0_{number}" for number in range(24)]
    for held, keeps in ((14, 14), (15, 12)):
        shape = group(
            " ".join(tasks),
            a=" ".join(["owns", *tasks[:held]]),
            b=" ".join(["owns", *tasks[held:]]),
        )
        assert len(target(shape, rules.imbalance_percentage)["a"].split()) == keeps


def test_one_overloaded_member_starts_balancing(group: Build) -> None:
    """The other members are within 30 % of 4.5, this one is not."""
    owned = {
        name: f"owns {' '.join(f'{number}_{p}' for p in range(count))}"
        for number, (name, count) in enumerate([("a", 6), ("b", 4), ("c", 4), ("d", 4)])
    }
    tasks = " ".join(text.removeprefix("owns ") for text in owned.values())

    counts = [len(told.split()) for told in target(group(tasks, **owned), imbalance=0.3).values()]

    assert counts == [5, 5, 4, 4]


def test_overload_is_judged_with_undealt_tasks_counted(group: Build) -> None:
    shape = group("0_0 0_1 0_2 0_3 0_4 0_5", a="owns 0_0 0_1 0_2 0_3", b="owns 0_4")

    assert target(shape, imbalance=0.4) == {"a": "0_0 0_1 0_2 0_3", "b": "0_4 0_5"}


def test_undealt_tasks_count_for_the_member_least_loaded_by_capacity(group: Build) -> None:
    shape = group(
        "0_0 0_1 0_2 0_3 0_4 0_5 0_6 0_7 0_8 0_9 1_0",
        a="owns 0_0 0_1",
        b="owns 0_2 0_3 0_4 0_5 capacity=2",
        c="owns 0_6 0_7 0_8 0_9",
    )

    assert target(shape, imbalance=0.5) == {
        "a": "0_0 0_1",
        "b": "0_2 0_3 0_4 0_5 1_0",
        "c": "0_6 0_7 0_8 0_9",
    }


def test_move_from_a_leaver_does_not_start_balancing(group: Build) -> None:
    shape = group(
        "0_0 0_1 0_2 0_3 0_4 0_5 0_6 0_7",
        a="owns 0_0 0_1 0_2 0_3 0_4",
        b="owns 0_5 0_6 learner 0_7=99",
        c="owns 0_7 leaving",
    )

    assert target(shape, imbalance=0.4)["a"] == "0_0 0_1 0_2 0_3 0_4"


def test_started_balancing_continues_within_the_tolerance(group: Build) -> None:
    tasks, b = "0_0 0_1 0_2 0_3 0_4 0_5", "owns 0_4 0_5"
    even = {"a": "0_1 0_2 0_3", "b": "0_0 0_4 0_5"}

    learning = group(tasks, a="owns 0_0 0_1 0_2 0_3", b=f"{b} learner 0_0=99")
    remembered = group(tasks, Memory(1, TaskKind.STATEFUL), a="owns 0_0 0_1 0_2 0_3", b=b)
    other_kind = group(tasks, Memory(1, TaskKind.STATELESS), a="owns 0_0 0_1 0_2 0_3", b=b)

    assert target(learning, imbalance=0.4) == even
    assert target(remembered, imbalance=0.4) == even
    assert target(other_kind, imbalance=0.4) != even


def test_stateless_tasks_even_out_uneven_stateful_tasks(group: Build) -> None:
    assert target(group("0_0 | 9_0", a="", b="")) == {"a": "0_0", "b": "9_0"}


def test_stateless_task_goes_to_the_member_least_loaded_by_capacity(group: Build) -> None:
    stateful = {"a": "owns 0_0 0_1", "b": "capacity=2 owns 0_2 0_3 0_4"}

    shape = group("0_0 0_1 0_2 0_3 0_4 | 9_0", **stateful)

    assert target(shape) == {"a": "0_0 0_1", "b": "0_2 0_3 0_4 9_0"}


def test_tolerance_for_stateless_tasks_counts_all_tasks(group: Build) -> None:
    shape = group("0_0 0_1 0_2 | 9_0 9_1 9_2", a="owns 0_0 0_1 9_0 9_1", b="owns 0_2 9_2")

    assert target(shape, imbalance=0.3) == {"a": "0_0 0_1 9_1", "b": "0_2 9_0 9_2"}


def test_stateless_tasks_stay_when_the_total_is_within_the_tolerance(group: Build) -> None:
    """Members have 4 and 8 tasks: each is a third from its share."""
    a, b = "owns 0_0 0_1 9_0 9_1", "owns 0_2 0_3 0_4 0_5 9_2 9_3 9_4 9_5"
    tasks = "0_0 0_1 0_2 0_3 0_4 0_5 | 9_0 9_1 9_2 9_3 9_4 9_5"
    found = target(group(tasks, a=a, b=b), imbalance=0.4)
    assert found == {"a": a.removeprefix("owns "), "b": b.removeprefix("owns ")}


def test_task_few_members_can_run_is_placed_first_and_counted(group: Build) -> None:
    shape = group("| 0_0 1_0", a="knows=0,1", b="knows=1")

    assert target(shape) == {"a": "0_0", "b": "1_0"}


def test_tasks_of_an_opaque_member_stay_there(group: Build) -> None:
    shape = group("0_0 0_1 0_2", a="owns 0_0 0_1 0_2 opaque", b="", c="")

    assert target(shape) == {"a": "0_0 0_1 0_2", "b": "", "c": ""}


def test_tasks_of_a_leaver_go_to_their_learners(group: Build) -> None:
    shape = group("0_0 0_1", a="owns 0_0 0_1 leaving", b="learner 0_1=99", c="")

    assert target(shape) == {"a": "", "b": "0_1", "c": "0_0"}
