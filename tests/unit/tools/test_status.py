"""`streamsx status`: its output and exit codes."""

import argparse
import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamsx.assignor.model import LeaveRequest, MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.client.security import PLAINTEXT
from streamsx.clock import SystemClock
from streamsx.errors import BrokerUnreachable
from streamsx.group.admin.describe import GroupDescription
from streamsx.model import TaskId, TopicPartition, brief
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.testing import Broker
from streamsx.tools import status
from streamsx.tools.cli import group_status
from streamsx.tools.cli.app_input import NOTHING_KNOWN, AppInput, CommittedOffset, TaskInput
from streamsx.tools.cli.group_status import as_data, failed_check, quiet_tasks, stale_s
from streamsx.tools.cli.group_table import BEHIND, drawn, far_of

T = TaskId
SEEN = GroupDescription(
    "Stable",
    GroupReport(
        generation=7,
        leader="m2",
        instances=(
            Instance(
                MemberMetadata("m1", "b", "p1", leaving=LeaveRequest(9), version="0.1.0"),
                (T(0, 0), T(1, 0)),
                failures={T(1, 0): "task stopped: 1_0: {why}"},
            ),
            Instance(
                MemberMetadata("m2", "a", "p2", version="0.1.0", metrics={"rebalance-total": 2.0}),
                (T(0, 1),),
                {T(1, 0): 120, T(1, 2): None},
                stalled=(T(1, 0),),
            ),
            Instance(MemberMetadata("m3", opaque=True)),
        ),
        withheld=(T(1, 1), T(1, 2)),
        marks={},
    ),
)
DATA = {
    "app": "shop",
    "at": 1041.0,
    "state": "Stable",
    "generation": 7,
    "leader": "a",
    "instances": {
        "a": {
            "state": "running",
            "active": ["0_1"],
            "lag": {"0_1": 7},
            "committed": {"0_1": 1000},
            "stopped": [],
            "failures": [
                {"task": "1_0", "what": "stalled", "why": group_status.STALLED.format("1_0")},
            ],
            "standby": [],
            "learner": [{"task": "1_0", "lag": 120}, {"task": "1_2", "lag": None}],
            "version": "0.1.0",
            "member": "m2",
            "process": "p2",
            "metrics": {"rebalance-total": 2.0},
            "note": "",
        },
        "b": {
            "state": "leaving",
            "active": ["0_0", "1_0"],
            "lag": {"0_0": 0, "1_0": None},
            "committed": {"0_0": None, "1_0": None},
            "stopped": ["1_0"],
            "failures": [{"task": "1_0", "what": "stopped", "why": "task stopped: 1_0: {why}"}],
            "standby": [],
            "learner": [],
            "version": "0.1.0",
            "member": "m1",
            "process": "p1",
            "metrics": {},
            "note": "",
        },
        "m3": {
            "state": "unknown",
            "active": [],
            "lag": {},
            "committed": {},
            "stopped": [],
            "failures": [],
            "standby": [],
            "learner": [],
            "version": "",
            "member": "m3",
            "process": "",
            "metrics": {},
            "note": group_status.UNREAD,
        },
    },
    "tasks": 5,
    "unassigned": ["1_1", "1_2"],
    "absent_topics": [],
    "lag": 7,
    "committed": 1000,
    "time": {"0_1": {"at": 5, "closed": None, "held_back_by": None, "late": 0}},
    "note": "",
    "notes": [],
    "time_notes": [],
}
NOW = 1041.0


def place(offset: int, committed_s: int = 0, **beside: object) -> CommittedOffset:
    return CommittedOffset(offset, OffsetMetadata(5, committed_s=committed_s, **beside))  # type: ignore[arg-type]


def known(*tasks: tuple[TaskId, int | None, int]) -> AppInput:
    """Progress by task, lag and Unix second of the last commit."""
    found = {
        task: TaskInput(lag, {TopicPartition("in", task.partition): place(3, committed_s)})
        for task, lag, committed_s in tasks
    }
    return AppInput(found, 7, 1000)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["status", *arguments])
    with pytest.raises(SystemExit) as exit_:
        status.main()
    return exit_.value.code


def test_status_json_has_the_contract_form() -> None:
    found = known((T(0, 1), 7, 1000))
    tasks = {**found.tasks, T(0, 0): TaskInput(0, {})}
    data = as_data("shop", SEEN, found._replace(tasks=tasks), NOW)
    assert json.loads(json.dumps(data)) == DATA
    assert list(as_data("shop", SEEN, NOTHING_KNOWN, NOW)["instances"]) == ["a", "b", "m3"]


def settled(*instances: Instance) -> GroupDescription:
    return GroupDescription("Stable", GroupReport(7, "m1", instances, (), {}))


def runs(member: str, instance: str, process: str, *tasks: TaskId, alike: bool = True) -> Instance:
    return Instance(MemberMetadata(member, instance, process), tasks, alike=alike)


def test_workers_with_the_same_name_have_a_distinct_row_each() -> None:
    """The second worker hid the first: half of the tasks were not shown."""
    seen = settled(
        runs("m1", "a", "3f9c12abcd", T(0, 0)), runs("m2", "a", "77aa01becd", T(0, 1)),
        runs("m3", "b", "0c", T(0, 2)),
    )  # fmt: skip

    data = as_data("shop", seen, NOTHING_KNOWN, NOW)

    rows = {name: (it["active"], it.get("ambiguous")) for name, it in data["instances"].items()}
    assert rows == {
        "a@3f9c12ab": (["0_0"], True), "a@77aa01be": (["0_1"], True), "b": (["0_2"], None),
    }  # fmt: skip
    assert data["leader"] == "a@3f9c12ab"
    assert "2 workers have the name a" in data["instances"]["a@3f9c12ab"]["note"]


def test_row_without_tasks_shows_the_reason() -> None:
    seen = settled(
        runs("m1", "a", "p1", T(0, 0), T(0, 1)), runs("m2", "b", "p2", alike=False),
        runs("m3", "c", "p3"),
    )  # fmt: skip

    data = as_data("shop", seen, NOTHING_KNOWN, NOW)

    assert [it["note"] for it in data["instances"].values()] == [
        "", group_status.OTHER_CODE.format("a"),
        "there are more workers than tasks",
    ]  # fmt: skip
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(drawn(data, NOW))
    assert "\nc: there are more workers than tasks\n" in out.getvalue()


def test_worker_of_an_app_without_tasks_is_not_noted_as_surplus() -> None:
    data = as_data("shop", settled(runs("m1", "a", "p1")), NOTHING_KNOWN, NOW)
    assert data["instances"]["a"]["note"].startswith("there are no tasks: the app reads no topic")


def test_standby_column_is_shown_when_there_are_standbys() -> None:
    seen = settled(
        runs("m1", "a", "p1", T(0, 0)), Instance(MemberMetadata("m2", "b"), standbys={T(0, 0): 7})
    )

    data = as_data("shop", seen, NOTHING_KNOWN, NOW)

    assert [it["standby"] for it in data["instances"].values()] == [[], ["0_0"]]
    assert not data["instances"]["b"]["note"], "it has something to do"
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(drawn(data, NOW))
    words = [line.split() for line in out.getvalue().splitlines()]
    assert words[1][-3:] == ["commit", "standby", "version"], "no worker learns"
    assert words[3] == ["b", "running", "0_0"]


def test_rebalancing_group_shows_state_and_member_ids() -> None:
    blank = Instance(MemberMetadata("m1", opaque=True))
    seen = GroupDescription("PreparingRebalance", GroupReport(-1, None, (blank,), (), {}))

    data = as_data("shop", seen, NOTHING_KNOWN, NOW)

    assert (data["state"], data["generation"], data["leader"]) == ("PreparingRebalance", -1, None)
    assert data["instances"]["m1"]["state"] == "unknown"


def test_status_table_has_no_control_characters() -> None:
    out = io.StringIO()

    with status.painter(out, live=True) as paint:
        paint(drawn(DATA, NOW))

    told = out.getvalue()
    assert {letter for letter in told if not letter.isprintable()} == {"\n"}
    assert [" ".join(line.split()) for line in told.splitlines() if line.strip()] == [
        "shop at 1970-01-01T00:17:21Z: running, 5 tasks on 3 workers, leader a, moving: 1_1-2",
        "worker state runs behind last commit learns version",
        "a running 0_1 7 (0_1 7) 41 s ago 1_0 (120 behind), 1_2 (? behind) 0.1.0",
        "b leaving, 1 stopped 0_0, stopped 1_0 0 (1_0 ?) 0.1.0",
        "(not known) unknown",
        "a: learner 1_0 has not come nearer for a minute: its worker or the broker may be too busy",
        "b: task stopped: 1_0: {why}",
        f"(not known): {group_status.UNREAD}",
        BEHIND,
    ]


def test_empty_group_is_reported_as_standing_still() -> None:
    """`Empty, generation -1, leader not known, 0 tasks` looked as if all was well."""
    empty = GroupDescription("Empty", GroupReport(-1, None, (), (), {}))
    data = as_data("shop", empty, AppInput({}, 20, 1000), NOW)

    assert data["note"] == group_status.NO_WORKER
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(drawn(data, NOW))
    assert out.getvalue().splitlines() == [
        f"shop at 1970-01-01T00:17:21Z: {group_status.NO_WORKER}",
        "last commit: 1970-01-01T00:16:40Z, 41 s ago",
        "behind: 20 records of the input are not committed",
    ]


def test_row_shows_the_tasks_with_the_largest_lags() -> None:
    lags = {"0_0": 5, "0_1": 0, "0_2": 70, "1_0": 1, "1_1": 30}
    assert far_of(lags) == "106 (0_2 70, 1_1 30, 0_0 5, ...)"
    assert far_of({"0_0": 0, "0_1": 0}) == "0"
    assert far_of({}) == ""


def test_adjacent_task_ids_are_shown_as_ranges() -> None:
    assert brief([]) == ""
    assert brief(["0_0", "0_1", "0_2", "0_5", "1_3", "2_7", "2_8"]) == "0_0-2,5 1_3 2_7-8"
    assert brief([T(0, 9), T(0, 10), T(10, 1)]) == "0_9-10 10_1"


def worker(
    instance: str, *tasks: TaskId, version: str = "0.1.0", session_ms: int = 45_000
) -> Instance:
    member = MemberMetadata(f"m-{instance}", instance, version=version, session_ms=session_ms)
    return Instance(member, tasks)


def notes(found: AppInput, stuck: set[TaskId], *instances: Instance) -> list[str]:
    notes: list[str] = as_data("shop", settled(*instances), found, NOW, stuck)["notes"]
    return notes


def test_worker_that_commits_nothing_is_named_with_the_end_of_its_session() -> None:
    found = known((T(0, 0), 5, 1000), (T(0, 1), 0, 900))
    assert quiet_tasks(found, NOW) == {T(0, 0)}
    assert notes(found, {T(0, 0)}, worker("b", T(0, 0), T(0, 1))) == [
        (
            "b: records are waiting and its last commit is 41 s old: it may be dead; its session "
            "ends after session_timeout (45 s), then others take over"
        )
    ]
    assert "session_timeout, then" in notes(found, {T(0, 0)}, worker("b", T(0, 0), session_ms=0))[0]
    assert notes(found, set(), worker("b", T(0, 0))) == [], "a second look has seen a commit"


def test_worker_that_outlives_its_session_is_not_called_dead() -> None:
    (told,) = notes(known((T(0, 0), 5, 960)), {T(0, 0)}, worker("b", T(0, 0), session_ms=70_000))
    assert "it may be dead" in told
    (told,) = notes(known((T(0, 0), 5, 960)), {T(0, 0)}, worker("b", T(0, 0)))
    assert "last commit is 1 min old, but it is in the group" in told


def test_task_that_alone_commits_nothing_is_named() -> None:
    found = known((T(0, 0), 5, 1000), (T(0, 1), 3, 1040))
    (told,) = notes(found, {T(0, 0)}, worker("b", T(0, 0), T(0, 1)))
    assert told.startswith("b: 0_0: records are waiting and the last commit is 41 s old, while ")


def test_tasks_without_lag_or_time_of_a_commit_are_not_quiet() -> None:
    found = known((T(0, 0), 0, 5), (T(0, 1), 5, 0), (T(0, 2), None, 5), (T(0, 3), 5, 1035))
    assert quiet_tasks(found, NOW) == set()


def test_commits_of_a_long_interval_are_old_later() -> None:
    seldom = Instance(MemberMetadata("m1", "a", commit_ms=30_000), (T(0, 0),))
    assert stale_s(settled(worker("b"), seldom).report) == 90
    assert stale_s(settled(worker("b")).report) == group_status.STALE_S
    found = known((T(0, 0), 5, 1000))
    assert quiet_tasks(found, NOW, 90) == set()


def test_stopped_task_is_shown_where_it_stands() -> None:
    here = Instance(MemberMetadata("m1", "a"), (T(0, 0),), failures={T(0, 0): ""})
    found = known((T(0, 0), 5, 1000))
    data = as_data("shop", settled(here), found, NOW, {T(0, 0)})
    (failure,) = data["instances"]["a"]["failures"]
    assert failure["why"] == f"{group_status.STOPPED.format('0_0')} (it stands at in-0 offset 3)"
    assert data["notes"] == [], "it is no riddle why this task commits nothing"

    told = Instance(MemberMetadata("m1", "a"), (T(0, 0),), failures={T(0, 0): "in-0 offset 3: why"})
    (failure,) = as_data("shop", settled(told), found, NOW)["instances"]["a"]["failures"]
    assert failure["why"] == "in-0 offset 3: why"


def test_workers_of_another_version_are_named() -> None:
    here = worker("a"), worker("b"), worker("c", version="0.2.0")
    (told,) = notes(NOTHING_KNOWN, set(), *here)
    assert told.startswith("other versions of streamsx than 0.1.0: c 0.2.0: no action needed while")


def test_worker_with_code_that_differs_in_part_is_noted() -> None:
    other = Instance(MemberMetadata("m2", "b"), (T(0, 1),), same_code=False)
    data = as_data("shop", settled(runs("m1", "a", "p"), other), NOTHING_KNOWN, NOW)
    assert data["instances"]["b"]["note"] == group_status.PART_CODE.format("a")


@pytest.mark.parametrize(
    ("lags", "stopped", "lag_max", "wrong"),
    [
        ((0, 500), (), None, ""),
        ((0, 500), (), 500, ""),
        ((0, 501), (), 500, "0_1 is 501 records behind, over --max-lag 500"),
        ((7, 9), (), 5, "0_1 is 9 records behind, and 1 more tasks, over --max-lag 5"),
        ((0, None), (), None, ""),
        ((0, None), (), 500, "the lag of 0_1 is not known now: check again"),
        ((0, 0), ("0_1",), 500, "tasks have stopped: 0_1 on a: streamsx status and the worker's"),
    ],
)
def test_check_names_each_fault(
    lags: tuple[int | None, ...], stopped: tuple[str, ...], lag_max: int | None, wrong: str
) -> None:
    tasks = tuple(T(0, number) for number in range(len(lags)))
    failures = {TaskId.parse(task): "why" for task in stopped}
    here = Instance(MemberMetadata("m1", "a"), tasks, failures=failures)
    found = known(*((task, lag, 1040) for task, lag in zip(tasks, lags, strict=True)))

    told = failed_check(as_data("shop", settled(here), found, NOW), lag_max)

    assert told.startswith(wrong)
    assert bool(told) == bool(wrong)


def test_check_fails_without_workers_and_during_a_rebalance() -> None:
    empty = GroupDescription("Empty", GroupReport(-1, None, (), (), {}))
    assert failed_check(as_data("shop", empty, NOTHING_KNOWN, NOW), None) == group_status.NO_WORKER
    blank = Instance(MemberMetadata("m1", opaque=True))
    moving = GroupDescription("PreparingRebalance", GroupReport(-1, None, (blank,), (), {}))
    assert "rebalancing" in failed_check(as_data("shop", moving, NOTHING_KNOWN, NOW), None)


def test_topic_that_is_gone_is_noted_and_fails_the_check() -> None:
    told = "topic payments is not there: its tasks wait until it is created again"
    found = AppInput({}, None, None, ("payments",))
    data = as_data("shop", settled(runs("m1", "a", "p1")), found, NOW)
    assert told in shown(data)
    assert failed_check(data, None) == told


def shown(data: dict[str, object], *, times: bool = False) -> list[str]:
    out = io.StringIO()
    with status.painter(out, live=False) as paint:
        paint(drawn(data, NOW, times=times))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_rebalancing_group_without_known_workers_is_one_line() -> None:
    blank = [Instance(MemberMetadata(f"streamsx-{n}", opaque=True)) for n in range(2)]
    seen = GroupDescription("PreparingRebalance", GroupReport(-1, None, tuple(blank), (), {}))
    assert shown(as_data("shop", seen, AppInput({}, 20, 1000), NOW)) == [
        (
            "shop at 1970-01-01T00:17:21Z: rebalancing, with 2 workers in the group; the last "
            "commit was 41 s ago, 20 records are not committed: a worker that has died is waited "
            "for until its session ends"
        )
    ]


def test_watched_group_keeps_its_table_during_a_rebalance() -> None:
    lines = shown({**DATA, "state": "PreparingRebalance"})
    assert lines[0].startswith(
        "shop at 1970-01-01T00:17:21Z: rebalancing; ahead of that, 5 tasks on 3 workers, leader a"
    )


def test_times_of_tasks_are_shown_when_asked_for() -> None:
    data = {**DATA, "time": {"0_1": {"at": 5000, "closed": 4000, "held_back_by": "0_2", "late": 3}}}
    lines = shown(data, times=True)
    at = lines.index("task event time windows at held back by late records")
    assert lines[at + 1] == "0_1 1970-01-01T00:00:05Z 1970-01-01T00:00:04Z 0_2 3"
    assert lines[at + 2] == (
        "windows at: a window closes when `windows at` passes its end and its grace"
    )


def test_notes_stand_above_the_times_of_tasks() -> None:
    data = {**DATA, "notes": ["a note"]}
    lines = shown(data, times=True)
    assert lines.index("a note") < next(n for n, line in enumerate(lines) if "event time" in line)


def test_row_of_a_worker_with_only_stopped_tasks_shows_these() -> None:
    here = Instance(MemberMetadata("m1", "a"), (T(0, 0),), failures={T(0, 0): "why"})
    lines = shown(as_data("shop", settled(here), NOTHING_KNOWN, NOW))
    assert lines[1] == "worker state runs behind last commit version"
    assert lines[2] == "a running, 1 stopped stopped 0_0 0 (0_0 ?)"


def test_check_names_the_task_that_is_farthest_behind() -> None:
    here = Instance(MemberMetadata("m1", "a"), (T(0, 0), T(0, 1), T(0, 2)))
    found = known((T(0, 0), 5, 1), (T(0, 1), 1400, 1), (T(0, 2), None, 1))
    assert status.worst(as_data("shop", settled(here), found, NOW)) == ", at most 1,400 in 0_1"
    assert status.worst(as_data("shop", settled(here), NOTHING_KNOWN, NOW)) == ""


def test_task_that_is_quiet_for_a_moment_is_noted_with_the_times_only() -> None:
    data = {**DATA, "notes": ["one"], "time_notes": ["one", "0_2: event time stands still"]}
    assert "0_2: event time stands still" not in shown(data)
    assert shown(data, times=True).count("one") == 1
    assert "0_2: event time stands still" in shown(data, times=True)


def test_status_without_the_figures_of_commits_stays_the_same() -> None:
    found = known((T(0, 1), 7, 1000))
    first = as_data("shop", SEEN, found, NOW)
    later = as_data("shop", SEEN, known((T(0, 1), 7, 1001))._replace(committed_s=1001), NOW + 1)
    assert first != later
    assert status.lasting(first) == status.lasting(later)
    assert status.lasting(first) != status.lasting({**first, "state": "Empty"})


@pytest.mark.parametrize(
    "words", [("--max-lag", "5"), ("--watch", "--check"), ("--check", "--max-lag", "-1")]
)
def test_options_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert command(monkeypatch, "--app", "shop", *words) == 2


def test_watch_waits_for_the_app_and_outlives_the_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(status, "TRIES_FOR_S", 0.2)
    broker = Broker(tmp_path / "broker")

    async def story(bootstrap: str) -> list[tuple[object, str]]:
        where = argparse.Namespace(app="shop", bootstrap=bootstrap, security=PLAINTEXT)
        looks = status.Looks(where, SystemClock())
        try:
            first = await looks.look()
            await asyncio.to_thread(broker.__exit__, None, None, None)
            return [first, await looks.look(), await looks.look()]
        finally:
            await looks.stop()

    with broker:
        bootstrap = broker.bootstrap
        (_, absent), *away = asyncio.run(story(bootstrap))
    assert absent.startswith("no such app: shop:")
    assert absent.endswith("; waiting for the app to start")
    for data, trouble in away:
        assert data is None
        assert re.fullmatch(
            f"no answer since .*Z: no broker at {bootstrap}; trying again", trouble
        ), trouble


def test_watch_tells_the_age_of_figures_ahead_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    where = argparse.Namespace(
        app="shop", bootstrap="b:1", security=PLAINTEXT, time=False, people=io.StringIO()
    )
    looks = status.Looks(where, SystemClock())
    answers: list[object] = [DATA, BrokerUnreachable("away")]

    async def newest() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(looks, "_newest", newest)

    async def story() -> tuple[object, str]:
        await looks.look()
        return await looks.look()

    data, trouble = asyncio.run(story())
    assert data == DATA
    assert trouble.endswith(
        ": no broker at b:1; trying again; the figures are of 1970-01-01T00:17:21Z"
    )

    first, table = status.pictures(where, SystemClock(), DATA, trouble)
    assert first == trouble
    with status.painter(where.people, live=False) as paint:
        paint(table)
    assert " 41 s ago " in where.people.getvalue(), "as of the figures"


def test_warnings_of_the_client_stay_off_a_watched_screen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("streamsx")
    before = log.level
    with status.without_warnings():
        log.warning("A broker is out of reach")
    assert caplog.records == []
    assert log.level == before


def test_help_imports_no_client_of_kafka() -> None:
    """Help took 0.5 s of CPU, as the parts that ask the brokers were imported with the command."""
    code = "import sys; from streamsx.tools import explain, status; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    loaded = set(done.stdout.decode().split())
    assert not loaded & {"aiokafka", "faust", "streamsx.client.cluster", "streamsx.topology.nodes"}


def test_unknown_app_is_exit_code_3_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Broker(tmp_path / "broker") as broker:
        where = ("--bootstrap", broker.bootstrap)

        assert command(monkeypatch, "--app", "shop", *where) == 3

    assert capsys.readouterr() == (
        "",
        "error: no such app: shop: this cluster has no group of that id: check the id\n",
    )
