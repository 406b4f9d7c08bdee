"""News about the members of a group, as the leader reports them."""

from collections.abc import Mapping
from dataclasses import dataclass

from streamsx.assignor.membership import MemberChange, MemberNews, has_label
from streamsx.assignor.model import Copy, CopyRole, LeaveRequest, MemberMetadata, Rules
from streamsx.assignor.observer import observing
from streamsx.assignor.partition_assignor import Outcome, StreamsPartitionAssignor, Subtopology
from streamsx.assignor.wire import read_assignment
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription

COUNTS = {"orders": 2, "users": 2}
RULES = Rules(max_learners=0)
"""Tasks move at once, so that one round after a release is enough."""
ALL = tuple(TaskId(sub, partition) for sub in (0, 1) for partition in (0, 1))
JOINED, RESTARTED, LEFT, LOST, DIFFERS = MemberChange
NOW_MS = 1_000


def made(
    name: str, directory: str = "", code: tuple[int, ...] = (1, 2)
) -> StreamsPartitionAssignor:
    topics = [("orders",), ("users",), ("more",)]
    return StreamsPartitionAssignor(
        MemberMetadata("", name, (directory or name).encode().ljust(16).hex(), version="0.1.0"),
        RULES,
        [Subtopology(n, topics[n], n == 1, signature) for n, signature in enumerate(code)],
    )


@dataclass
class Process:
    """Worker with its last Subscription and assignment."""

    assignor: StreamsPartitionAssignor
    owned: tuple[TopicPartition, ...] = ()
    fresh: bool = True
    leaving: bool = False
    nonce: int = 0

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(sorted(self.assignor.tasks_of(self.owned)))


class GroupOfWorkers:
    """Workers by member id; the first one leads while it is there."""

    def __init__(self) -> None:
        self.all: dict[str, Process] = {}
        self.leader = ""
        self.generation = 0
        self.tool = False

    def come(self, member: str, process: StreamsPartitionAssignor) -> None:
        self.all[member] = Process(process)

    def go(self, member: str) -> tuple[TaskId, ...]:
        """Return the tasks that the member had."""
        return self.all.pop(member).tasks

    def said(self, member: str) -> bytes:
        each = self.all[member]
        each.nonce += 1
        said = MemberMetadata(
            "",
            nonce=each.nonce,
            claims=frozenset(each.owned),
            fresh=each.fresh,
            leaving=LeaveRequest() if each.leaving else None,
            copies={task: Copy(CopyRole.RUNNING) for task in each.tasks},
        )
        data = each.assignor.user_data(said)
        return Subscription(tuple(COUNTS), data, each.owned, self.generation).write()

    def round(self, partitions: Mapping[str, int] = COUNTS) -> Outcome:
        """Play one round; each member releases revoked tasks at once."""
        if self.leader not in self.all:
            self.leader = next(iter(self.all))
        metadata = [(member, self.said(member)) for member in self.all]
        if self.tool:
            tool = observing({}, nonce=1).user_data(MemberMetadata("", nonce=self.generation))
            metadata.append(("tool", Subscription((), tool).write()))
        self.generation += 1
        outcome = self.all[self.leader].assignor.assign(
            metadata, partitions, leader=self.leader, generation=self.generation, now_ms=NOW_MS
        )
        for member, each in self.all.items():
            given = Assignment.read(outcome.assignments[member])
            each.assignor.on_assignment(given.user_data)
            each.owned = given.partitions
            each.fresh = False
        return outcome

    def news(self, rounds: int = 4) -> list[MemberNews]:
        """Play rounds until no task moves; return the news."""
        return [news for _ in range(rounds) for news in self.round().news]


def group_of(*names: str) -> GroupOfWorkers:
    group = GroupOfWorkers()
    for name in names:
        group.come(f"{name}1", made(name))
    group.news()
    return group


def test_first_workers_and_a_later_one_have_joined() -> None:
    group = GroupOfWorkers()
    group.come("a1", made("a"))
    assert group.news() == [MemberNews(JOINED, "a", ALL, total=4)]
    group.come("b1", made("b"))
    (news,) = group.news()
    assert (news.change, news.worker, len(news.tasks), news.total) == (JOINED, "b", 2, 4)


def test_killed_worker_is_lost_with_its_tasks_and_their_new_workers() -> None:
    group = group_of("a", "b")
    had = group.go("b1")
    assert group.news() == [MemberNews(LOST, "b", had, {"a": 2})]


def test_worker_that_leaves_has_left_when_it_is_gone_and_not_before() -> None:
    group = group_of("a", "b", "c")
    had = group.all["b1"].tasks
    group.all["b1"].leaving = True
    assert group.news() == []
    group.go("b1")
    (news,) = group.news()
    assert (news.change, news.worker, news.tasks) == (LEFT, "b", had)
    assert sum(news.to.values()) == len(had)


def test_worker_without_tasks_is_no_loss_when_it_is_gone() -> None:
    """A worker without tasks has none to hand over: it leaves at once, without a round before."""
    group = group_of(*"abcde")
    (idle_one,) = (member for member, each in group.all.items() if not each.tasks)
    group.go(idle_one)
    (news,) = group.news()
    assert (news.change, news.worker, news.tasks) == (LEFT, idle_one[0], ())


def test_new_leader_tells_that_the_leader_is_gone() -> None:
    group = group_of("a", "b")
    had = group.go("a1")
    assert group.news() == [MemberNews(LOST, "a", had, {"b": 2}, led=True)]


def test_new_leader_tells_that_the_leader_left() -> None:
    group = group_of("a", "b")
    group.all["a1"].leaving = True
    group.news()
    group.go("a1")
    (news,) = group.news()
    assert (news.change, news.worker, news.led) == (LEFT, "a", True)


def test_leader_that_shares_its_name_is_not_gone_while_it_is_here() -> None:
    group = group_of("a")
    group.come("a2", made("a", directory="other"))
    group.news()
    group.leader = "a2"
    assert group.news() == []


def test_worker_that_is_started_again_with_its_directory_is_no_loss() -> None:
    group = group_of("a", "b")
    group.go("b1")
    group.come("b2", made("b"))
    (news,) = group.news()
    assert (news.change, news.worker, news.was) == (RESTARTED, "b", "")


def test_leader_that_is_started_again_is_no_loss() -> None:
    group = group_of("a", "b")
    group.go("a1")
    group.come("a2", made("a"))
    (news,) = group.news()
    assert (news.change, news.worker) == (RESTARTED, "a")


def test_worker_in_the_directory_of_a_dead_one_names_it() -> None:
    group = group_of("a", "b")
    group.go("b1")
    group.come("d1", made("d", directory="b"))
    (news,) = group.news()
    assert (news.change, news.worker, news.was) == (RESTARTED, "d", "b")


def test_member_that_was_away_for_too_long_is_back() -> None:
    group = group_of("a", "b")
    away = group.all["b1"]
    group.go("b1")
    group.news()
    away.owned = ()
    group.all["b2"] = away
    (news,) = group.news()
    assert (news.change, news.worker, news.back) == (JOINED, "b", True)


def test_rolling_restart_has_a_leave_and_a_join_of_each_worker() -> None:
    group = group_of("a", "b", "c")
    told = []
    for name in "abc":
        group.all[f"{name}1"].leaving = True
        told += group.news()
        group.go(f"{name}1")
        told += group.news()
        group.come(f"{name}2", made(name))
        told += group.news()
    assert [(news.change, news.worker) for news in told] == [
        (LEFT, "a"), (JOINED, "a"), (LEFT, "b"), (JOINED, "b"), (LEFT, "c"), (JOINED, "c"),
    ]  # fmt: skip


def test_tools_are_no_workers() -> None:
    group = group_of("a", "b")
    group.tool = True
    assert group.news(2) == []
    group.tool = False
    assert group.news(2) == []


def test_loss_during_rounds_without_a_plan_is_told_with_the_next_plan() -> None:
    group = group_of("a", "b")
    assert group.round({"orders": 2}).plan is None
    group.go("b1")
    assert group.round({"orders": 2}).news == ()
    (news,) = group.news()
    assert (news.change, news.worker) == (LOST, "b")


def test_leader_that_led_long_ago_compares_with_nothing() -> None:
    group = group_of("a", "b")
    group.leader = "b1"
    group.come("c1", made("c"))
    group.news()
    group.go("c1")
    group.news()
    group.leader = "a1"
    assert group.news() == []


def test_worker_with_other_code_is_told_once() -> None:
    group = group_of("a")
    group.come("c1", made("c", code=(1, 2, 9)))
    news = group.news()
    assert [each.change for each in news] == [JOINED, DIFFERS]
    assert news[1].worker == "c"


def test_member_that_cannot_be_read_has_no_name() -> None:
    group = group_of("a")
    odd = ("x", Subscription(tuple(COUNTS), b"\x09\x09").write())
    outcome = group.all["a1"].assignor.assign(
        [("a1", group.said("a1")), odd], COUNTS, leader="a1", generation=9, now_ms=NOW_MS
    )
    assert [news.worker for news in outcome.news] == ["of another version"]


def idle(group: GroupOfWorkers) -> dict[str, str]:
    """Return the reasons why members have no tasks and will not get any."""
    outcome = group.round()
    views = {m: Assignment.read(data).user_data for m, data in outcome.assignments.items()}
    return {m: why for m, data in views.items() if (why := read_assignment(data).idle)}


def test_worker_beyond_the_number_of_tasks_is_told_why_it_has_none() -> None:
    group = group_of(*"abcde")
    (why,) = idle(group).values()
    assert why == "the app has 4 tasks and 5 workers"


def test_worker_of_other_code_is_told_that_it_has_no_tasks_until_all_have_it() -> None:
    group = group_of("a")
    group.come("c1", made("c", code=(8, 9)))
    group.news()
    (why,) = idle(group).values()
    assert why == (
        "its code differs from that of the leader, worker a: it gets tasks when all workers run "
        "the same code"
    )


def test_worker_that_will_get_tasks_is_not_idle() -> None:
    group = group_of("a")
    group.come("b1", made("b"))
    assert idle(group) == {}
    group.all["b1"].leaving = True
    group.news()
    assert idle(group) == {}


def test_leader_lost_among_workers_of_its_name_is_told() -> None:
    """The staying worker of that name was taken for the leader, so the loss had no line."""
    stays = MemberMetadata("m2", "a", "77aa01be00")
    assert has_label(stays, "a")
    assert has_label(stays, "a@77aa01be")
    assert has_label(stays, "a@m2")
    assert not has_label(stays, "a@e36092be")
    assert not has_label(stays, "b")
