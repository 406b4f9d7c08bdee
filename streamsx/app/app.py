"""App: what a user's module creates. Its decorators collect; nothing runs before a driver comes.

The form is Faust's, so that an app file for Faust runs with its import changed, as far as what it
uses is here.

Not here: settings (`settings`), what runs (`streamsx.engine`).
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from inspect import iscoroutinefunction, signature, unwrap
from threading import get_ident
from typing import Any, TypeVar, Unpack, overload

from streamsx.app.agent import Agent, Sink, check_call, name_of
from streamsx.app.channel import SendOptions, Topic
from streamsx.app.compat import FaustNames, sifted
from streamsx.app.discovery import reached, sends_to
from streamsx.app.services import Job
from streamsx.app.settings import SettledConfig, resolve_config
from streamsx.app.table import Table
from streamsx.config import Config, seconds
from streamsx.errors import NameClash, UsageError
from streamsx.processing.inbox import Done, Host, wrong_thread
from streamsx.state.cache import CachedStore
from streamsx.tasks.rebalance_listeners import Listener, RebalanceListeners
from streamsx.topology.build import Topology, build
from streamsx.topology.internal_topics import TopicKind

V = TypeVar("V")
Fun = TypeVar("Fun", bound=Callable[..., Any])
Listens = TypeVar("Listens", bound=Listener)


class App(FaustNames):
    """`id` names the group of its workers and the topics it makes.

    `settings`: `streamsx.config.Config` without the units, or Faust's names; Kafka's dotted ones
    go into `config={...}`. Nothing is read or checked before `conf` is asked for.
    """

    def __init__(self, id: str, **settings: object) -> None:  # noqa: A002  # Faust's
        self._id, self._settings = id, settings
        self._command_line: dict[str, object] = {}
        self._notes: list[str] = []
        self.jobs: list[Job] = []
        """Tasks and timers."""
        self.listeners = RebalanceListeners()
        """Of rebalances."""
        self.agents: dict[str, Agent] = {}
        self.tables: dict[str, Table[Any, Any]] = {}
        self.topics: dict[str, Topic] = {}
        """By name, made before anything runs; the first object that has it."""
        self.host: Host | None = None
        """What runs this app; set by the driver before its tasks and services start."""

    # -- settings

    @cached_property
    def settled(self) -> SettledConfig:
        """The settings, with notes on them. Raises SettingError."""
        return resolve_config(self._id, self._settings, self._command_line, os.environ)

    @property
    def conf(self) -> Config:
        return self.settled.config

    def earlier_ids(self) -> list[str]:
        """Of the versions before this one."""
        given = self._id, self._settings
        return [
            resolve_config(*given, {**self._command_line, "version": number}, os.environ).config.id
            for number in range(1, self.conf.version)
        ]

    def override(self, **settings: object) -> None:
        """From the command line: they count more than all others. Before `topology`."""
        self._command_line |= settings
        vars(self).pop("settled", None)

    def finalize(self) -> None:
        """Read and check the settings. Raises SettingError."""
        _ = self.settled

    # -- what it consists of

    def topic(self, *names: str, **options: Any) -> Topic:
        """A topic, or several that are read alike; `options` as for Topic. Raises NotSupported."""
        ours = self._ours("app.topic", f"topic {names}", options)
        made = Topic(self, names, **ours)
        if self.host is None:  # what runs has looked its topics up
            for name in names:
                self.topics.setdefault(name, made)
        return made

    def agent(
        self,
        channel: Topic | str | None = None,
        *,
        name: str | None = None,
        sink: Iterable[Sink] | None = None,
        tables: Iterable[Table[Any, Any] | str] | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Agent]:
        """Make an agent of an `async def` that iterates a stream, and may yield to its sinks.

        `tables`: those it touches, when they cannot be found in its code; `options`: of the topic,
        when `channel` is not one. There is one instance for each task. Raises NameClash for a name
        that is taken, TypeError for what is no topic, NotSupported.
        """
        if not isinstance(channel, Topic | str | None):
            raise TypeError(f"not a topic: {channel!r}: write @app.agent(topic), or @app.agent()")

        def decorate(fun: Callable[..., Any]) -> Agent:
            ours = self._ours("@app.agent", f"agent {name or name_of(fun)}", options)
            made = Agent(
                self, fun, name=name, channel=channel, sinks=sink or (), tables=tables, options=ours
            )
            _add(self.agents, made.name, made, "agent", self._id)
            return made

        return decorate

    @overload
    def Table(self, name: str, *, default: Callable[[], V], **options: Any) -> "Table[Any, V]": ...

    @overload
    def Table(self, name: str, *, default: None = None, **options: Any) -> "Table[Any, Any]": ...

    def Table(  # noqa: N802  # Faust's
        self, name: str, *, default: Callable[[], Any] | None = None, **options: Any
    ) -> "Table[Any, Any]":
        """A table of values by key; `options` as for Table. Raises NameClash, NotSupported."""
        ours = self._ours("app.Table", f"table {name}", options)
        made: Table[Any, Any] = Table(self, name, default=default, **ours)
        _add(self.tables, name, made, "table", self._id)
        return made

    @overload
    def task(self, fun: Fun) -> Fun: ...

    @overload
    def task(
        self, fun: None = None, *, on_leader: bool = False, traced: bool = True
    ) -> Callable[[Fun], Fun]: ...

    def task(
        self, fun: Fun | None = None, *, on_leader: bool = False, traced: bool = True
    ) -> Fun | Callable[[Fun], Fun]:
        """Run an async function once, when a worker has started; it may take the app."""

        def decorate(fun: Fun) -> Fun:
            self._ours("app.task", f"task {name_of(fun)}", {"traced": traced})
            self._add_job(fun, None, None, on_leader=on_leader)
            return fun

        return decorate if fun is None else decorate(fun)

    def timer(
        self,
        interval: object,
        on_leader: bool = False,
        traced: bool = True,
        name: str | None = None,
        max_drift_correction: float = 0.1,
    ) -> Callable[[Fun], Fun]:
        """Run an async function every `interval`, first after one; `on_leader`: on one worker."""
        interval_s = seconds(interval)
        if not 0 < interval_s < float("inf"):
            raise ValueError(f"not an interval: {interval!r}: write 500ms, 60s or 10m")

        def decorate(fun: Fun) -> Fun:
            given = {"traced": traced, "max_drift_correction": max_drift_correction}
            self._ours("app.timer", f"timer {name or name_of(fun)}", given)
            self._add_job(fun, name, interval_s, on_leader=on_leader)
            return fun

        return decorate

    def on_assigned(self, fun: Listens) -> Listens:
        """Call `fun` with the partitions that this worker is given, behind each rebalance: a
        frozenset, maybe empty. Async or not; one that raises ends the worker."""
        self.listeners.assigned.append(fun)
        return fun

    def on_revoked(self, fun: Listens) -> Listens:
        """Call `fun` with partitions that go to another worker. They have stopped and are
        committed, and go when it returns: an async one may wait, up to `revoke_timeout`."""
        self.listeners.revoked.append(fun)
        return fun

    def on_lost(self, fun: Listens) -> Listens:
        """Call `fun` with partitions that somebody else may run by now; `on_revoked` without it."""
        self.listeners.lost.append(fun)
        return fun

    def _ours(self, call: str, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Without what is Faust's alone. Raises NotSupported."""
        ours, notes = sifted(call, where, given)
        self._notes += notes
        return ours

    def _add_job(
        self, fun: Callable[..., Any], name: str | None, every: float | None, *, on_leader: bool
    ) -> None:
        may_run = self.is_leader if on_leader else lambda: True
        arguments = (self,) if signature(fun).parameters else ()
        if not iscoroutinefunction(unwrap(fun)):
            raise TypeError(f"not an async function: {fun!r}: write `async def`")
        check_call(fun, "the app, or nothing", *arguments)
        self.jobs.append(Job(name or name_of(fun), fun, arguments, may_run, every))

    # -- what it becomes

    def topology(self) -> Topology:
        """The graph. Bodies are looked into, nothing runs. Raises TopologyError, SettingError."""
        nodes = {name: table.node() for name, table in self.tables.items()}
        found = [(agent, reached(self, agent, nodes)) for agent in self.agents.values()]
        stages = [stage for agent, touched in found for stage in agent.stages(touched)]
        topics = [spec for agent, touched in found for spec in agent.specs(touched)]
        notes = [*self._notes, *(touched.note for _, touched in found if touched.note)]
        used = {store.name for stage in stages for store in stage.stores}
        topics += [table.spec() for name, table in self.tables.items() if name in used]
        elsewhere = [topic for job in self.jobs for topic in sends_to(self, job.fun)]
        elsewhere += self.topics.values()  # a name is enough to send to it
        known = {spec.name for spec in topics}
        sent_to = (spec for topic in elsewhere for spec in topic.specs(TopicKind.OUTPUT))
        topics += [spec for spec in sent_to if spec.name not in known]
        idle = sorted(self.tables.keys() - used)
        notes += [f"table without an agent: {name}: nobody can write it" for name in idle]
        derived = [each for _, touched in found for each in touched.derived if each.otherwise]
        shared = [each.topic.name for each in derived if each.otherwise != each.topic.name]
        if shared and self.conf.repartition_names == "faust":
            notes.append(
                f"topics without the app's id: {', '.join(sorted(shared))}: every app, and every "
                "version of this one, that has such an agent reads and deletes the same records"
            )
        otherwise = (each.otherwise for each in derived)
        return build(self.conf.id, stages, topics, notes, otherwise)

    # -- what it reaches while it runs

    def running_host(self, what: str) -> Host:
        """Return what runs this app, for `what` is asked of it.

        Raises UsageError while nothing does, WrongThread on another thread than its own.
        """
        self.check_thread(what)
        if self.host is None:
            raise UsageError(f"not running: app {self._id}: start a worker, or use a TestDriver")
        return self.host

    def check_thread(self, what: str) -> None:
        """Raise WrongThread on another thread than that of what runs this app."""
        if self.host is not None and self.host.thread not in (None, get_ident()):
            raise wrong_thread(f"{what}, app {self._id}")

    def now_ms(self) -> int:
        """The driver's time; 0 without one."""
        return 0 if self.host is None else self.host.now_ms()

    def stores(self, table: str) -> Mapping[int, CachedStore]:
        """Return those of the tasks that run here, by partition, for all of the table.

        Raises WrongThread.
        """
        self.check_thread(f"table {table}")
        if self.host is None:
            return {}
        self.host.tell_part(table)
        return self.host.stores(table)

    def look(self, table: str, key: Any) -> Any:
        """Return the value of a key, None where it is missing. Raises WrongThread, NotHere."""
        self.check_thread(f"table {table}")
        return None if self.host is None else self.host.look(table, key)

    def is_leader(self) -> bool:
        return self.host is not None and self.host.is_leader()

    def send(
        self,
        channel: Topic | str,
        key: Any = None,
        value: Any = None,
        **options: Unpack[SendOptions],
    ) -> Done:
        """As `Topic.send`, to a topic that may be given by its name: one that `topic` has made."""
        if isinstance(channel, str):
            channel = self.topics.get(channel) or Topic(self, (channel,))
        return channel.send(key=key, value=value, **options)

    def main(self) -> None:
        """The command line with this app: `python shop.py worker` for `python -m streamsx`."""
        from streamsx.__main__ import main

        sys.argv[1:1] = ["-A", "__main__"]
        main()

    def __repr__(self) -> str:
        return f"<App: {self._id}>"


def _add(known: dict[str, Any], name: str, made: object, what: str, app: str) -> None:
    if name in known:
        raise NameClash(f"two of one name: {what} {name}, app {app}: rename one of them")
    known[name] = made
