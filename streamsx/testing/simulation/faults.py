"""What goes wrong in a world, and how often: a swarm, other for each seed.

A seed draws which kinds of faults there are at all, so that rare mixes are common somewhere, and
how often one comes. Faults that last end by themselves; when all is healed no new one begins, and
some of the dead come back.
"""

import random
from typing import TYPE_CHECKING

from streamsx.assignor.model import Mark, MarkState
from streamsx.membership import events as e
from streamsx.testing.simulation.heap import Life
from streamsx.testing.simulation.worker import Directory, Worker

if TYPE_CHECKING:
    from streamsx.testing.simulation.world import World

WORKERS_MAX = 5
LONG_S = (1.0, 12.0, 40.0)
"""Against a session of 10 s and rounds of 15: nothing, a session, and more than both."""
BACK_S = (0.2, 3.0, 20.0, None)
STOP_S = 5.0


class Faults:
    """Of one world. Each kind is a method `_kind`."""

    KINDS = (
        "add", "busy", "crash", "crash_at_write", "cut", "kill", "leave", "lose_disk", "mark",
        "pause", "reset", "slow", "stop",
    )  # fmt: skip

    def __init__(self, world: "World", *, quiet: bool) -> None:
        self.world, self.random = world, random.Random(f"{world.seed}/faults")
        self.life = Life("faults")
        self.kinds = [kind for kind in self.KINDS if self.random.random() < 0.4] or ["kill"]
        self.every_s = self.random.choice([2.0, 6.0, 20.0])
        self.quiet = quiet
        if not quiet:
            self._next()

    def _next(self) -> None:
        kind = self.random.choice(self.kinds)
        self.world.heap.after(
            self.random.expovariate(1 / self.every_s),
            self.life,
            kind,
            None,
            lambda: self._strike(kind),
        )

    def _strike(self, kind: str) -> None:
        if not self.world.healed:
            getattr(self, f"_{kind}")()
            self._next()

    def heal(self) -> None:
        """Who stays dead, stays dead: but somebody comes back."""
        self.world.node.crash_at = None
        for worker in self.world.workers:
            self.world.network.cut(worker.life).slow = 1.0
        dead = self.world.dead
        for directory in dead:
            if self.random.random() < 0.5:
                self.world.begin(directory)
        self._somebody()

    def over(self, worker: Worker, *, clean: bool) -> None:
        """A process has ended by itself."""
        if clean and not self.quiet:
            self._back(worker.directory)
        elif not self.quiet:
            self.world.heap.after(
                1.0, self.life, "again", None, lambda: self._begin(worker.directory)
            )

    def _back(self, directory: Directory) -> None:
        after = self.random.choice(BACK_S)
        if self.world.healed:
            self.world.heap.after(1.0, self.life, "somebody", None, self._somebody)
        elif after is not None:
            self.world.heap.after(
                after, self.life, "back", directory.name, lambda: self._begin(directory)
            )

    def _begin(self, directory: Directory) -> None:
        if directory in self.world.dead:
            self.world.begin(directory)

    def _somebody(self) -> None:
        if not self.world.alive:
            self.world.begin(self.world.dead[0])

    def _victim(self) -> Worker | None:
        alive = self.world.alive
        return self.random.choice(alive) if alive else None

    # The kinds.

    def _add(self) -> None:
        if len(self.world.alive) < WORKERS_MAX:
            self.world.add()

    def _kill(self) -> None:
        if victim := self._victim():
            victim.kill()
            self._back(victim.directory)

    def _lose_disk(self) -> None:
        if victim := self._victim():
            victim.kill()
            victim.directory.stores.clear()
            victim.directory.member_id = None
            self._back(victim.directory)

    def _stop(self) -> None:
        if victim := self._victim():
            victim.post(e.Stop(self.world.heap.now + STOP_S))

    def _leave(self) -> None:
        if victim := self._victim():
            seconds = self.random.choice([5.0, 30.0, None])
            victim.post(e.Leave(None if seconds is None else self.world.heap.now + seconds))

    def _mark(self) -> None:
        """Or take a mark back, or kill the tool that is at it."""
        victim, now_ms = self._victim(), int(self.world.heap.now * 1000)
        tools = [tool for tool in self.world.tools if not tool.life.over]
        if tools and self.random.random() < 0.3:
            tools[0].kill()
        elif victim:
            state = self.random.choice([MarkState.LEAVING, MarkState.LEAVING, MarkState.CANCELLED])
            deadline_ms = self.random.choice([None, now_ms + 5_000, now_ms + 30_000])
            mark = Mark(state, deadline_ms=deadline_ms, epoch_ms=now_ms)
            self.world.use_tool({victim.directory.name: mark})

    def _pause(self) -> None:
        if victim := self._victim():
            until = self.world.heap.now + self.random.choice(LONG_S)
            victim.life.frozen_until = victim.data.frozen_until = until

    def _busy(self) -> None:
        """User code holds the data loop; the control thread goes on."""
        if victim := self._victim():
            seconds = self.random.choice([0.3, 3.0, 20.0])
            victim.data.frozen_until = self.world.heap.now + seconds

    def _reset(self) -> None:
        connections = list(self.world.network.connections)
        if connections:
            self.world.network.reset(self.random.choice(connections))

    def _cut(self) -> None:
        """One way, the other, or both; often of several at once, which open at other times. Never
        sooner than an earlier cut: what waits for that one would be overtaken."""
        for worker in self.world.alive:
            if self.random.random() < 0.5:
                until = self.world.heap.now + self.random.choice(LONG_S)
                up, down = self.random.choice([(until, 0.0), (0.0, until), (until, until)])
                cut = self.world.network.cut(worker.life)
                cut.up_until, cut.down_until = max(cut.up_until, up), max(cut.down_until, down)

    def _slow(self) -> None:
        if victim := self._victim():
            self.world.network.cut(victim.life).slow = self.random.choice([1.0, 10.0])

    def _crash(self) -> None:
        node = self.world.node
        if not node.life.over:
            node.crash(self.random.choice([0.1, 2.0, 9.0]), self.random.choice([0.0, 0.5, 3.0]))

    def _crash_at_write(self) -> None:
        self.world.node.crash_at = self.random.choice(["before", "after"])
