"""What goes wrong in a world, and how often: a swarm, other for each seed.

A seed draws which kinds of faults there are at all, so that rare mixes are common somewhere, and
how often one comes. Each kind draws from a stream of its own. Faults that last end by themselves;
when all is healed no new one begins, and the dead come back.
"""

import random
from typing import TYPE_CHECKING

from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api
from streamsx.simulation.front import HOSTS
from streamsx.simulation.homes import Home
from streamsx.simulation.nodes import BROKER
from streamsx.simulation.scene import COUNTS, LINES, WORDS, A, B

if TYPE_CHECKING:
    from streamsx.simulation.world import World

SHARE = 0.3
FIRST_S = 10.0
SHORT_S, LONG_S = (0.5, 4.0, 12.0), (1.0, 6.0, 14.0)
"""Against sessions of 6 to 15 s."""
BACK_S = (0.3, 3.0, 20.0)
POINTS = (
    "processing", "after_seal", "after_flush", "before_adopt", "during_write", "after_write",
    "during_restore", "during_wipe",
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


class Faults:
    """Of one world. Each kind is a method `_kind`."""

    KINDS = (
        "add", "busy", "cancel", "coordinator", "crash", "cut", "damage", "disk_full", "disk_slow",
        "freeze", "grow", "kill", "kill_tool", "leader", "leaderless", "leave", "lose_disk",
        "node_vanishes", "point", "power", "refuse_commit", "refuse_produce", "reset", "silence",
        "slow", "stop", "stop_twice", "uncoordinated",
    )  # fmt: skip

    def __init__(self, world: "World") -> None:
        self.world, self._away_until = world, 0.0
        drawn = {kind: world.scheduler.stream(f"faults/{kind}") for kind in self.KINDS}
        self.random = drawn
        self.kinds = [kind for kind, rng in drawn.items() if rng.random() < SHARE] or ["kill"]
        self._when = world.scheduler.stream("faults")
        self.every_s = self._when.choice([2.0, 6.0, 15.0])
        for home in world.homes:
            apart_s = self._when.choice([0.05, 4.0])
            world.at(1.0 + home.number * apart_s, home.start)
        world.at(FIRST_S, self._strike)

    def _strike(self) -> None:
        if not self.world.healed:
            kind = self._when.choice(self.kinds)
            getattr(self, f"_{kind}")(self.random[kind])
            self.world.met[kind] += 1
            self.world.after(self._when.expovariate(1 / self.every_s), self._strike)

    def heal(self) -> None:
        world = self.world
        world.scheduler.disk_s, world.dies_at = world.DISK_S, ""
        world.network.heal()
        for home in world.homes:
            home.disk.full = False
            world.after(0.5 + self._when.random() * 3, home.start)

    def over(self, home: Home) -> None:
        """A worker has ended by itself."""
        self._back(home, self.random["stop"])

    def _back(self, home: Home, rng: random.Random) -> None:
        self.world.after(1.0 if self.world.healed else rng.choice(BACK_S), home.start)

    def _victim(self, rng: random.Random) -> Home | None:
        alive = [home for home in self.world.homes if home.alive]
        return rng.choice(alive) if alive else None

    # -- workers

    def _add(self, _: random.Random) -> None:
        for home in self.world.homes:
            home.start()

    def _kill(self, rng: random.Random, *, power: bool = False, disk: bool = True) -> None:
        if home := self._victim(rng):
            home.kill(power=power, disk=disk)
            self._back(home, rng)

    def _power(self, rng: random.Random) -> None:
        self._kill(rng, power=True)

    def _lose_disk(self, rng: random.Random) -> None:
        self._kill(rng, disk=False)

    def _point(self, rng: random.Random) -> None:
        """Whoever passes it next dies there; restores need somebody to begin."""
        self.world.dies_at = rng.choice(POINTS)
        self._add(rng)

    def _stop(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            home.terminate()

    def _stop_twice(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            home.terminate()
            self.world.after(rng.random() * 2, home.terminate)

    def _freeze(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            home.freeze(rng.choice(LONG_S))

    def _busy(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            home.busy(rng.choice((0.3, 3.0, 14.0)))

    def _disk_full(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            home.say("its disk is full")
            home.disk.full = True
            self.world.after(rng.choice(LONG_S), self._make_room, home)

    def _make_room(self, home: Home) -> None:
        home.disk.full = False

    def _disk_slow(self, rng: random.Random) -> None:
        self.world.scheduler.disk_s = rng.choice((self.world.DISK_S, 0.5, 5.0))

    # -- the tool

    def _leave(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            self.world.leave(home.name, timeout_s=rng.choice((5.0, 20.0)))

    def _cancel(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            self.world.leave(home.name, timeout_s=20.0)
            after_s = rng.choice((0.5, 2.0, 6.0))
            self.world.after(after_s, self._take_back, home.name)

    def _take_back(self, name: str) -> None:
        self.world.leave(name, timeout_s=20.0, cancel=True)

    def _kill_tool(self, rng: random.Random) -> None:
        self._leave(rng)
        if self.world.tools:
            self.world.after(rng.random() * 2, self.world.tools[-1].kill)

    # -- the network

    def _cut(self, rng: random.Random) -> None:
        """One way, the other, or both, of several at once."""
        for home in self.world.homes:
            if home.alive and rng.random() < 0.5:
                seconds, name = rng.choice(LONG_S), home.process.name
                up, down = rng.choice(((True, False), (False, True), (True, True)))
                home.say(f"is cut off for {seconds} s, up={up}, down={down}")
                for host in HOSTS:
                    if up:
                        self.world.network.cut(name, host, seconds)
                    if down:
                        self.world.network.cut(host, name, seconds)

    def _reset(self, rng: random.Random) -> None:
        home = self._victim(rng)
        if home is not None and home.process.sockets:
            home.say("a connection is reset")
            self.world.network.reset(rng.choice(list(home.process.sockets.values())))

    def _slow(self, rng: random.Random) -> None:
        if home := self._victim(rng):
            self.world.network.slow[home.process.name] = rng.choice((1.0, 10.0))

    # -- the broker

    def _silence(self, rng: random.Random) -> None:
        self.world.nodes.freeze(rng.choice(LONG_S))

    def _crash(self, rng: random.Random) -> None:
        self.world.nodes.crash(rng.choice((0.2, 3.0, 9.0)), power=rng.random() < 0.3)

    def _coordinator(self, _: random.Random) -> None:
        self.world.nodes.move_coordinator()

    def _uncoordinated(self, rng: random.Random) -> None:
        self.world.front.uncoordinated_until = self.world.now + rng.choice(SHORT_S)
        self.world.nodes.move_coordinator()

    def _leader(self, _: random.Random) -> None:
        self.world.nodes.move_leader()

    def _leaderless(self, rng: random.Random) -> None:
        until = self.world.now + rng.choice(SHORT_S)
        topics = rng.choice(((COUNTS,), (WORDS,), (LINES, WORDS, COUNTS, A, B)))
        self.world.say(BROKER, f"{topics} have no leader until {until:.1f}")
        self.world.front.leaderless.update(dict.fromkeys(topics, until))
        self.world.nodes.move_leader()

    def _node_vanishes(self, rng: random.Random) -> None:
        if self._away_until <= self.world.now:
            seconds = rng.choice((3.0, 12.0, 30.0))
            self._away_until = self.world.now + seconds
            self.world.nodes.vanish(rng.randrange(len(HOSTS)), seconds)

    def _damage(self, _: random.Random) -> None:
        self.world.front.damage()

    def _refuse_produce(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            topic = rng.choice((COUNTS, WORDS))
            self.world.front.stingy[topic] = self.world.now + rng.choice(SHORT_S)
        else:
            self.world.front.refused[Api.PRODUCE] = rng.choice((1, 5)), rng.choice(REFUSALS)

    def _refuse_commit(self, rng: random.Random) -> None:
        code = rng.choice(COMMIT_REFUSALS)
        self.world.front.refused[Api.OFFSET_COMMIT] = rng.choice((1, 5)), code

    def _grow(self, rng: random.Random) -> None:
        """Of sources without state."""
        if pair := self.world.scene.pair:
            topic, most = rng.choice((A, B)), max(pair)
            self.world.nodes.grow(topic, most if topic == B else most + 1)
