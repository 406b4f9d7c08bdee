"""Machines with disks, on which real workers are started, killed and stopped.

The two threads of a worker are two event loops of one process. The stores are on a disk in memory.
The state directory is a real one, so that locks, ids and the member id are the product's.
"""

import asyncio
import shutil
import signal
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamsx.clock import Clock
from streamsx.group.member import Member
from streamsx.journal import Journal
from streamsx.model import TaskId
from streamsx.simulation.apps import app_of
from streamsx.simulation.disk import Disk
from streamsx.simulation.nodes import BOOTSTRAP
from streamsx.simulation.process import Process
from streamsx.simulation.scene import APP
from streamsx.state.directory import StateDirectory
from streamsx.state.memory import MemoryRows
from streamsx.tasks.active_task import Active
from streamsx.tasks.rebalance_listeners import RebalanceListeners
from streamsx.worker.wiring import WorkerComponents
from streamsx.worker.worker import Worker

if TYPE_CHECKING:
    from streamsx.simulation.world import World


class _Journal(Journal):
    """Journal that passes its events to the world and writes no file."""

    def __init__(self, home: "SimulatedHost", clock: Clock) -> None:
        super().__init__(home.name, clock)
        self._home = home

    def __call__(self, event: str, **fields: object) -> None:
        super().__call__(event, **fields)
        self._home.world.journaled(self._home, event, fields)


class SimulatedHost:
    """Machine of the instance `name`, on which worker processes live one after another."""

    def __init__(self, world: "World", number: int, folder: Path) -> None:
        self.scheduler = world.scheduler
        self.network = world.network
        self.world = world
        self.scene = world.scene
        self.number = number
        self.name = f"w{number + 1}"
        self.folder = folder / f"w{number + 1}"
        self.disk = Disk()
        self.lives = 0
        self.terminated = False
        self.older = False
        """Whether the worker runs the app of the version before."""
        self._ids = self.scheduler.stream(f"ids/{self.name}")
        self._directory: StateDirectory | None = None
        self._worker: Worker | None = None
        self.process: Process
        """Process of the newest life."""

    # -- its lives

    @property
    def alive(self) -> bool:
        return self.lives > 0 and self.process.alive

    def start(self) -> None:
        """Start a worker unless one is alive."""
        if self.alive or self._directory is not None:
            return
        self.lives += 1
        self.disk.refused = self.terminated = False
        process = self.process = Process(self.network, f"{self.name}.{self.lives}")
        self._worker = None
        process.on_kill.append(self._release)
        self.say("starts")
        process.start(self._main, "data")

    async def _main(self) -> None:
        outcome: int | Exception
        try:
            self._worker = self._made()
            outcome = await self._worker.run()
        except Exception as error:
            outcome = error
        finally:
            self._release()
        if self.process.alive:  # not if it was killed in the middle of an act
            self.say(f"ended: {outcome!r}")
            self.world.ended(self, outcome)

    def _made(self) -> Worker:
        """Make the worker as `streamsx worker` does."""
        clock = self.process.clock
        stream = self.scheduler.stream
        name = self.process.name
        self.older = self.scene.is_older(self.lives) and not self.world.healed
        app = app_of(
            self.scene.before() if self.older else self.scene,
            partial(self.world.hear, "done", self),
            stream(f"app/{name}"),
            broker=BOOTSTRAP,
            state_dir=str(self.folder),
            instance_id=self.name,
            **self.scene.settings(self.number, self.lives),
        )
        self._directory = StateDirectory(self.folder, app.conf.id, self._fresh_id)
        self._directory.name_instance(self.name)
        return Worker(
            app.topology(),
            app.conf,
            self._directory,
            _Journal(self, clock),
            clock,
            services=[(job.name, job.run) for job in app.jobs],
            hosted=lambda host: setattr(app, "host", host),
            listeners=self._listeners(),
            threads=self.process.begin,
            rows=lambda _: self.disk.open,
            rng=stream(f"worker/{name}"),
        )

    def _listeners(self) -> RebalanceListeners:
        delay_s = self.scene.slow_revoke_s
        return RebalanceListeners(revoked=[lambda _: asyncio.sleep(delay_s)] if delay_s else [])

    def _fresh_id(self) -> uuid.UUID:
        return uuid.UUID(int=self._ids.getrandbits(128))

    def _release(self) -> None:
        directory = self._directory
        self._directory = None
        if directory is not None:
            directory.release()

    def kill(self, *, power: bool = False, disk: bool = True) -> None:
        """Kill the worker, as SIGKILL.

        With `power` the connections are not closed. Without `disk` the disk is lost too.
        """
        if self.alive:
            self.say(f"is killed, power={power}, disk={disk}")
            self.process.kill(power=power)
            if not disk:
                self.disk.lose()
                shutil.rmtree(self.folder, ignore_errors=True)

    def terminate(self) -> None:
        """Send SIGTERM to the worker."""
        if self.alive:
            self.say("SIGTERM")
            self.terminated = True
            self.process.signal(signal.SIGTERM)

    def freeze(self, seconds: float) -> None:
        self.say(f"frozen for {seconds} s")
        self.process.freeze(seconds)

    def busy(self, seconds: float) -> None:
        """Block the data loop, as user code may; the control thread goes on."""
        if self.alive:
            self.say(f"busy for {seconds} s")
            self.process.main.hold(seconds)

    def say(self, what: str) -> None:
        """Add a line to the story, without the path of the folder, which differs in each run."""
        self.scheduler.say(self.process.name, what.replace(str(self.folder.parent), ""))

    # -- the true state, which no process knows

    @property
    def parts(self) -> WorkerComponents | None:
        return self._worker.made if self._worker is not None and self.alive else None

    @property
    def member(self) -> Member | None:
        return None if (parts := self.parts) is None else parts.session.member

    @property
    def works(self) -> bool:
        """Return whether the worker is awake, has processed all losses, and has a lease."""
        parts = self.parts
        now = self.scheduler.now
        if parts is None or self.process.frozen:
            return False
        return (
            parts.session.losses == parts.rebalance_handler.losses
            and now < parts.session.member.lease.until
        )

    @property
    def actives(self) -> dict[TaskId, Active]:
        """Active tasks that records are given to, by the ids of the world."""
        if (parts := self.parts) is None:
            return {}
        actives = parts.tasks.actives.items()
        return {self.named(task): active for task, active in actives if not active.suspended}

    @property
    def running(self) -> frozenset[TaskId]:
        return frozenset(self.actives)

    def named(self, task: TaskId) -> TaskId:
        """Return the id of a task in the world; each version numbers its sub-topologies anew."""
        return self.world.renumbered(task) if self.older else task

    def rows(self, name: str, partition: int) -> MemoryRows:
        """Return the rows of a store on the disk; no rows if there is no store."""
        path = self.folder / APP / "stores" / name / str(partition)
        return self.disk.stores.get(path) or MemoryRows()
