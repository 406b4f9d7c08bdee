"""Where workers live: a machine with a disk, on which the real worker is started, killed, stopped.

The worker's two threads are two loops of one process. Its stores are in a disk of memory, its
state directory is a real one, so that locks, ids and the member id are the product's.
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
    """Nothing of it is written to a file; the world hears it."""

    def __init__(self, home: "SimulatedHost", clock: Clock) -> None:
        super().__init__(home.name, clock)
        self._home = home

    def __call__(self, event: str, **fields: object) -> None:
        super().__call__(event, **fields)
        self._home.world.journaled(self._home, event, fields)


class SimulatedHost:
    """`name` is the instance; its worker may live several times, one at a time."""

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
        """It runs the app of the version before."""
        self._ids = self.scheduler.stream(f"ids/{self.name}")
        self._directory: StateDirectory | None = None
        self._worker: Worker | None = None
        self.process: Process
        """Of its newest life."""

    # -- its lives

    @property
    def alive(self) -> bool:
        return self.lives > 0 and self.process.alive

    def start(self) -> None:
        """Unless it lives."""
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
        if self.process.alive:  # else it was killed in the middle of something
            self.say(f"ended: {outcome!r}")
            self.world.ended(self, outcome)

    def _made(self) -> Worker:
        """As `streamsx worker` makes it."""
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
        """SIGKILL; with `power` its connections are not closed, without `disk` that is lost too."""
        if self.alive:
            self.say(f"is killed, power={power}, disk={disk}")
            self.process.kill(power=power)
            if not disk:
                self.disk.lose()
                shutil.rmtree(self.folder, ignore_errors=True)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.alive:
            self.say("SIGTERM")
            self.terminated = True
            self.process.signal(signal.SIGTERM)

    def freeze(self, seconds: float) -> None:
        self.say(f"frozen for {seconds} s")
        self.process.freeze(seconds)

    def busy(self, seconds: float) -> None:
        """User code holds the data loop; the control thread goes on."""
        if self.alive:
            self.say(f"busy for {seconds} s")
            self.process.main.hold(seconds)

    def say(self, what: str) -> None:
        """Where its folder is, which is elsewhere each time, is no part of a story."""
        self.scheduler.say(self.process.name, what.replace(str(self.folder.parent), ""))

    # -- what no process knows of itself

    @property
    def parts(self) -> WorkerComponents | None:
        return self._worker.made if self._worker is not None and self.alive else None

    @property
    def member(self) -> Member | None:
        return None if (parts := self.parts) is None else parts.session.member

    @property
    def works(self) -> bool:
        """Awake, has heard everything, and has a lease: what it does now counts."""
        parts = self.parts
        now = self.scheduler.now
        if parts is None or self.process.frozen:
            return False
        return parts.session.losses == parts.link.losses and now < parts.session.member.lease.until

    @property
    def actives(self) -> dict[TaskId, Active]:
        """Of tasks that records are given to; as the world numbers them."""
        if (parts := self.parts) is None:
            return {}
        actives = parts.tasks.actives.items()
        return {self.named(task): active for task, active in actives if not active.suspended}

    @property
    def running(self) -> frozenset[TaskId]:
        return frozenset(self.actives)

    def named(self, task: TaskId) -> TaskId:
        """Versions number their sub-topologies each for itself."""
        return self.world.renumbered(task) if self.older else task

    def rows(self, name: str, partition: int) -> MemoryRows:
        """A store on its disk; empty if there is none."""
        path = self.folder / APP / "stores" / name / str(partition)
        return self.disk.stores.get(path) or MemoryRows()
