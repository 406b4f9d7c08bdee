"""Faults of a world, in a mix and at a rate that each seed draws (swarm testing).

A seed draws the kinds of faults that strike at all, so that rare mixes are common in some seeds,
and the mean time between faults. Each kind draws from a stream of its own. Lasting faults end by
themselves. Once the world is healed, no new fault begins, and dead workers come back.
"""

import random
from functools import partial
from typing import TYPE_CHECKING

from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.simulation.hosts import SimulatedHost
from streamsx.simulation.nodes import BROKER, HOSTS
from streamsx.simulation.scene import COUNTS, LINES, ROUTED, WORDS, A, B
from streamsx.simulation.scheduler import DISK_S
from streamsx.simulation.shrink import Without

if TYPE_CHECKING:
    from streamsx.simulation.world import World

SHARE = 0.3
FIRST_S = 10.0
SHORT_S = (0.5, 4.0, 12.0)
LONG_S = (1.0, 6.0, 14.0)
"""Durations of faults in seconds; sessions last 6 to 15 s."""
BACK_S = (0.3, 3.0, 20.0)
POINTS = (
    "processing", "after_seal", "after_flush", "before_adopt", "during_write", "after_write",
    "during_restore", "during_wipe", "after_txn_offsets", "during_end",
)  # fmt: skip
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID,
)  # fmt: skip
COMMIT_REFUSALS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
)  # fmt: skip


TRANSACTION_APIS = (
    Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN,
    Api.TXN_OFFSET_COMMIT,
)  # fmt: skip
TRANSACTION_REFUSALS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)  # fmt: skip
ABORTS = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)
FENCED_AT = ("processing", "after_flush", "after_txn_offsets", "during_end")


class FaultKinds:
    """Base of the faults: each public method is a kind, with its own stream of random numbers."""

    def __init__(self, world: "World") -> None:
        self.world = world


class WorkerFaults(FaultKinds):
    """Faults that strike one live worker."""

    def kill(self, home: SimulatedHost, rng: random.Random, **how: bool) -> None:
        home.kill(**how)
        self.world.after(rng.choice(BACK_S), home.start)

    def power(self, home: SimulatedHost, rng: random.Random) -> None:
        self.kill(home, rng, power=True)

    def lose_disk(self, home: SimulatedHost, rng: random.Random) -> None:
        self.kill(home, rng, disk=False)

    def stop(self, home: SimulatedHost, _: random.Random) -> None:
        home.terminate()

    def stop_twice(self, home: SimulatedHost, rng: random.Random) -> None:
        home.terminate()
        self.world.after(rng.random() * 2, home.terminate)

    def freeze(self, home: SimulatedHost, rng: random.Random) -> None:
        home.freeze(rng.choice(LONG_S))

    def busy(self, home: SimulatedHost, rng: random.Random) -> None:
        home.busy(rng.choice((0.3, 3.0, 14.0)))

    def disk_full(self, home: SimulatedHost, rng: random.Random) -> None:
        home.say("its disk is full")
        home.disk.full = True
        self.world.after(rng.choice(LONG_S), setattr, home.disk, "full", False)

    def leave(self, home: SimulatedHost, rng: random.Random) -> None:
        self.world.leave(home.name, timeout_s=rng.choice((5.0, 20.0)))

    def swap(self, home: SimulatedHost, rng: random.Random) -> None:
        """Swap a worker with a random one, which may have just gone or be the same."""
        other = rng.choice(self.world.homes)
        self.world.leave(home.name, timeout_s=rng.choice((5.0, 20.0)), swap_to=other.name)

    def cancel(self, home: SimulatedHost, rng: random.Random) -> None:
        self.world.leave(home.name, timeout_s=20.0)
        back = partial(self.world.leave, home.name, timeout_s=20.0, cancel=True)
        self.world.after(rng.choice((0.5, 2.0, 6.0)), back)

    def kill_tool(self, home: SimulatedHost, rng: random.Random) -> None:
        self.leave(home, rng)
        self.world.after(rng.random() * 2, self.world.tools[-1].kill)

    def reset(self, home: SimulatedHost, rng: random.Random) -> None:
        if home.process.sockets:
            home.say("a connection is reset")
            home.network.reset(rng.choice(list(home.process.sockets.values())))

    def slow(self, home: SimulatedHost, rng: random.Random) -> None:
        home.network.slow[home.process.name] = rng.choice((1.0, 10.0))


class OtherFaults(FaultKinds):
    """Faults that strike several workers, or the broker."""

    def add(self, _: random.Random) -> None:
        for home in self.world.homes:
            home.start()

    def point(self, rng: random.Random) -> None:
        """Let the next worker die at a crash point; start all, since restores need new workers."""
        self.world.dies_at = rng.choice(POINTS)
        self.add(rng)

    def disk_slow(self, rng: random.Random) -> None:
        self.world.scheduler.disk_takes(rng.choice((DISK_S, 0.5, 5.0)))

    def cut(self, rng: random.Random) -> None:
        """Cut off several workers at once: one way, the other, or both."""
        for home in self.world.homes:
            if home.alive and rng.random() < 0.5:
                seconds = rng.choice(LONG_S)
                name = home.process.name
                up, down = rng.choice(((True, False), (False, True), (True, True)))
                home.say(f"is cut off for {seconds} s, up={up}, down={down}")
                for host in HOSTS:
                    self.world.network.cut(name, host, seconds * up)
                    self.world.network.cut(host, name, seconds * down)

    def silence(self, rng: random.Random) -> None:
        self.world.nodes.freeze(rng.choice(LONG_S))

    def crash(self, rng: random.Random) -> None:
        self.world.nodes.crash(rng.choice((0.2, 3.0, 9.0)), power=rng.random() < 0.3)

    def flush(self, rng: random.Random) -> None:
        """Let half of the broker's flushes fail for a while, in worlds that watch flushes."""
        disk = self.world.nodes.disk
        seconds = rng.choice(SHORT_S)
        self.world.say(BROKER, f"flushes fail for {seconds} s")
        disk.failures = 0.5
        self.world.after(seconds, setattr, disk, "failures", 0.0)

    def coordinator(self, _: random.Random) -> None:
        self.world.nodes.move_coordinator()

    def uncoordinated(self, rng: random.Random) -> None:
        self.world.nodes.uncoordinated_until = self.world.now + rng.choice(SHORT_S)
        self.world.nodes.move_coordinator()

    def leader(self, _: random.Random) -> None:
        self.world.nodes.move_leader()

    def leaderless(self, rng: random.Random) -> None:
        until = self.world.now + rng.choice(SHORT_S)
        topics = rng.choice(((COUNTS,), (WORDS,), (LINES, WORDS, COUNTS, A, B)))
        self.world.say(BROKER, f"{topics} have no leader until {until:.1f}")
        self.world.nodes.leaderless.update(dict.fromkeys(topics, until))
        self.world.nodes.move_leader()

    def node_vanishes(self, rng: random.Random) -> None:
        """Let a node vanish, one at a time."""
        if self.world.nodes.away_until <= self.world.now:
            seconds = rng.choice((3.0, 12.0, 30.0))
            self.world.nodes.vanish(rng.randrange(len(HOSTS)), seconds)

    def damage(self, _: random.Random) -> None:
        self.world.nodes.damage()

    def refuse_produce(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            topic = rng.choice((COUNTS, WORDS))
            self.world.nodes.stingy[topic] = self.world.now + rng.choice(SHORT_S)
        else:
            self.world.nodes.refused[Api.PRODUCE] = rng.choice((1, 5)), rng.choice(REFUSALS)

    def refuse_batches(self, rng: random.Random) -> None:
        """Refuse batches of a topic as too large, unless they have one record."""
        topic = rng.choice((COUNTS, WORDS, ROUTED))
        self.world.say(BROKER, f"{topic} takes batches of one record only")
        self.world.nodes.narrow[topic] = self.world.now + rng.choice(SHORT_S)

    def output_leaderless(self, rng: random.Random) -> None:
        """Take the leader from the output topic of one agent; the others commit."""
        until = self.world.now + rng.choice(LONG_S)
        self.world.say(BROKER, f"{ROUTED} has no leader until {until:.1f}")
        self.world.nodes.leaderless[ROUTED] = until
        self.world.nodes.move_leader()

    def refuse_commit(self, rng: random.Random) -> None:
        code = rng.choice(COMMIT_REFUSALS)
        self.world.nodes.refused[Api.OFFSET_COMMIT] = rng.choice((1, 5)), code
        if code is not ErrorCode.INVALID_COMMIT_OFFSET_SIZE:  # would stop its task for good
            self.world.nodes.refused[Api.TXN_OFFSET_COMMIT] = rng.choice((1, 5)), code

    def refuse_transaction(self, rng: random.Random) -> None:
        """Refuse requests of workers' transactions: for a while, or so that they are aborted."""
        api = rng.choice(TRANSACTION_APIS)
        self.world.nodes.refused[api] = rng.choice((1, 5)), rng.choice(TRANSACTION_REFUSALS)
        if api is not Api.INIT_PRODUCER_ID and rng.random() < SHARE:
            self.world.nodes.refused[api] = 1, rng.choice(ABORTS)

    def fence(self, rng: random.Random) -> None:
        """Fence the next worker that comes to some step of a commit, exactly there."""
        self.world.fenced_at = rng.choice(FENCED_AT)

    def grow(self, rng: random.Random) -> None:
        """Add partitions to a source topic without state."""
        if pair := self.world.scene.pair:
            topic = rng.choice((A, B))
            most = max(pair)
            self.world.nodes.grow(topic, most if topic == B else most + 1)


KINDS = sorted(
    name for kinds in (WorkerFaults, OtherFaults) for name in vars(kinds) if name[0] != "_"
)


class Faults:
    """Faults of one world. `struck`: number of faults due; `without`: numbers of those left out."""

    def __init__(self, world: "World", without: Without = frozenset()) -> None:
        self.world = world
        stream = world.scheduler.stream
        self._without = without
        self.struck = 0
        self._on_worker = WorkerFaults(world)
        self._elsewhere = OtherFaults(world)
        self.random = {kind: stream(f"faults/{kind}") for kind in KINDS}
        self.kinds = [kind for kind in KINDS if self.random[kind].random() < SHARE] or ["kill"]
        self._when = stream("faults")
        self.every_s = self._when.choice([2.0, 6.0, 15.0])
        for home in world.homes:
            apart_s = self._when.choice([0.05, 4.0])
            world.at(1.0 + home.number * apart_s, home.start)
        world.at(FIRST_S, self._strike)

    def _strike(self) -> None:
        world = self.world
        if world.healed:
            return
        kind = self._when.choice(self.kinds)
        world.after(self._when.expovariate(1 / self.every_s), self._strike)
        self.struck += 1
        if self.struck - 1 in self._without:
            return
        world.met[kind] += 1
        rng = self.random[kind]
        if strike := getattr(self._elsewhere, kind, None):
            strike(rng)
        elif alive := [home for home in world.homes if home.alive]:
            getattr(self._on_worker, kind)(rng.choice(alive), rng)

    def heal(self) -> None:
        world = self.world
        world.scheduler.disk_takes(DISK_S)
        world.dies_at = ""
        world.fenced_at = ""
        world.nodes.disk.failures = 0.0
        world.network.heal()
        for home in world.homes:
            home.disk.full = False
            if home.older:  # a worker of the old version, left over from a deploy
                home.kill()
            world.after(0.5 + self._when.random() * 3, home.start)

    def over(self, home: SimulatedHost) -> None:
        """Start a worker again that has ended by itself."""
        again_s = 1.0 if self.world.healed else self.random["stop"].choice(BACK_S)
        self.world.after(again_s, home.start)
