"""tasks/state_machine.py: the table of states."""

from itertools import product

import pytest

from streamsx.errors import InvalidTransition
from streamsx.model import Role, TaskId
from streamsx.tasks.state_machine import TABLE, TaskEffect, TaskEvent, TaskState, TaskStateMachine

TASK = TaskId(1, 0)
LIVING = [
    TaskState.OPENING,
    TaskState.PLACED,
    TaskState.OPENED,
    TaskState.RESTORING,
    TaskState.TAILING,
    TaskState.RUNNING,
    TaskState.STOPPED,
    TaskState.SUSPENDED,
]


def life(role: Role, *events: TaskEvent) -> TaskStateMachine:
    made = TaskStateMachine(TASK, role)
    for event in (TaskEvent.START, *events):
        made.step(0.0, event)
    return made


def opened(role: Role, *events: TaskEvent) -> TaskStateMachine:
    """Return a task whose stores are open and whose positions are known."""
    placed = [TaskEvent.POSITIONS_KNOWN] if role is Role.ACTIVE else []
    return life(role, TaskEvent.STORES_OPEN, *placed, *events)


def test_promoted_learner_reads_ends_anew_before_running() -> None:
    learner = opened(Role.LEARNER, TaskEvent.BEHIND, TaskEvent.REACHED_END)
    assert learner.step(1.0, TaskEvent.PROMOTE) == (TaskEffect.PLACE,)
    assert (learner.role, learner.state) == (Role.ACTIVE, TaskState.RESTORING)
    assert learner.step(2.0, TaskEvent.POSITIONS_KNOWN) == (TaskEffect.READ_ENDS,)
    assert learner.step(3.0, TaskEvent.REACHED_END) == (TaskEffect.RUN,)


@pytest.mark.parametrize("first", [TaskEvent.STORES_OPEN, TaskEvent.POSITIONS_KNOWN])
def test_active_reads_ends_after_stores_and_positions(first: TaskEvent) -> None:
    (second,) = {TaskEvent.STORES_OPEN, TaskEvent.POSITIONS_KNOWN} - {first}
    active = TaskStateMachine(TASK, Role.ACTIVE)
    assert active.step(0.0, TaskEvent.START) == (TaskEffect.OPEN, TaskEffect.PLACE)
    assert active.step(1.0, first) == ()
    assert active.step(2.0, second) == (TaskEffect.READ_ENDS,)
    assert (active.state, active.state.word) == (TaskState.OPENED, "opening")


@pytest.mark.parametrize("taken", [TaskEvent.REVOKE, TaskEvent.LOST, TaskEvent.RENEW])
@pytest.mark.parametrize("known", [(), (TaskEvent.POSITIONS_KNOWN,)])
@pytest.mark.parametrize("then", [TaskEvent.STORES_OPEN, TaskEvent.FAIL])
def test_stores_opened_late_or_never_are_closed(
    taken: TaskEvent, known: tuple[TaskEvent, ...], then: TaskEvent
) -> None:
    active = life(Role.ACTIVE, *known)
    asked = {
        TaskEvent.REVOKE: (TaskEffect.RELEASE,),
        TaskEvent.RENEW: (TaskEffect.ANEW,),
        TaskEvent.LOST: (),
    }
    assert active.step(1.0, taken) == asked[taken]
    assert (active.state, active.state.word) == (TaskState.ABANDONED, "closing")
    assert active.step(2.0, then) == (TaskEffect.CLOSE,)
    assert active.step(3.0, TaskEvent.FAIL) == ()
    active.step(4.0, TaskEvent.CLOSED)
    assert active.state is TaskState.CLOSED


def test_running_task_is_released_only_when_settled() -> None:
    active = opened(Role.ACTIVE, TaskEvent.AT_END)
    assert active.step(1.0, TaskEvent.REVOKE) == (TaskEffect.SUSPEND,)
    assert active.step(2.0, TaskEvent.SETTLED) == (TaskEffect.RELEASE, TaskEffect.CLOSE)


def test_restoring_task_is_released_at_once() -> None:
    restoring = opened(Role.ACTIVE, TaskEvent.BEHIND)
    assert restoring.step(1.0, TaskEvent.REVOKE) == (TaskEffect.RELEASE, TaskEffect.CLOSE)


def test_lost_event_on_learner_raises_invalid_transition() -> None:
    learner = opened(Role.LEARNER, TaskEvent.BEHIND)
    with pytest.raises(InvalidTransition):
        learner.step(1.0, TaskEvent.LOST)


def test_invalid_transition_message_shows_state_and_history() -> None:
    active = opened(Role.ACTIVE, TaskEvent.AT_END)
    with pytest.raises(InvalidTransition, match=r"task 1_0: START while active and running.*OPEN"):
        active.step(1.0, TaskEvent.START)


@pytest.mark.parametrize("role", [Role.ACTIVE, Role.LEARNER], ids=lambda role: role.value)
def test_every_living_state_can_end(role: Role) -> None:
    """From each state that the role reaches some event leads on, and CLOSED is reached."""
    table = TABLE[role] | TABLE[Role.ACTIVE]
    reached, todo = set(), [TaskState.CREATED]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [then for (_, at), (then, _) in table.items() if at is state and then]
    assert TaskState.CLOSED in reached
    for state in reached - {TaskState.CLOSED, TaskState.CREATED}:
        assert any(
            (event, state) in table for event in (TaskEvent.REVOKE, TaskEvent.DROP, TaskEvent.LOST)
        )


@pytest.mark.parametrize(("event", "state"), list(product(TaskEvent, LIVING)))
def test_task_runs_only_in_running_state(event: TaskEvent, state: TaskState) -> None:
    """RUN comes only with a step into RUNNING, RELEASE only with a step out of the
    living states.
    """
    for role in (Role.ACTIVE, Role.LEARNER):
        if cell := TABLE[role].get((event, state)):
            then, effects = cell
            assert (TaskEffect.RUN in effects) == (then is TaskState.RUNNING)
            assert (TaskEffect.RELEASE in effects) <= bool(then and then.ends)
            assert (then is TaskState.RUNNING) <= (role is Role.ACTIVE)
