"""App: the object that a user's module creates. Its decorators collect; a driver runs the result.

The form is Faust's, so that a Faust app file runs with a changed import, as far as this package has
the features that the file uses.

Not here: settings (`settings`), execution (`streamsx.worker`).
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from inspect import iscoroutinefunction, signature, unwrap
from itertools import chain
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload

from streamsx.app.agent import AGENT_OPTIONS, Agent, BodyUses, Sink, check_call, name_of
from streamsx.app.channel import SendOptions, Topic
from streamsx.app.compat import FaustNames, sifted
from streamsx.app.declaration import declaration, is_noting
from streamsx.app.discovery import reached, sends_to
from streamsx.app.failure_choice import OfFaust, Reaction, of_agent, on_failure
from streamsx.app.flow import Flow, begin_flow, key_codec, refuse_lost_deletions
from streamsx.app.flow_graph import FlowGraph
from streamsx.app.services import Job
from streamsx.app.settings import AppConfig, SettledConfig, resolve_config
from streamsx.app.table import Table
from streamsx.app.table_flow import GlobalTable, TableFlow
from streamsx.app.users_code import users_line
from streamsx.config import last_word, seconds
from streamsx.errors import NameClash, UsageError
from streamsx.mistakes import Mistakes
from streamsx.processing.inbox import Done, Host, wrong_thread
from streamsx.state.cache import CachedStore
from streamsx.tasks.rebalance_listeners import Listener, RebalanceListeners
from streamsx.topology.build import Topology, build
from streamsx.topology.internal_topics import (
    DEAD_LETTERS_CONFIG,
    TopicKind,
    TopicSpec,
    dead_letters_name,
)
from streamsx.topology.nodes import SubTopology

if TYPE_CHECKING:
    from streamsx.state.layout import StoreNode

TOPIC_ARGUMENTS: Final = signature(Topic).parameters.keys() - {"app", "names"}
TABLE_OPTIONS: Final = signature(Table).parameters.keys() - {"app", "name"}
V = TypeVar("V")
Fun = TypeVar("Fun", bound=Callable[..., Any])
Listens = TypeVar("Listens", bound=Listener)


class App(FaustNames):
    """App: the agents, flows, tables and timers that one group of workers runs.

        app = streamsx.App("shop", broker="kafka://localhost:9092")

    Settings are read and checked when `conf` is first used.

    Args:
        id: Name of the group of workers, and beginning of the names of internal topics.
        **settings: Settings by name, as in the settings reference, or by Faust's names. Kafka's
            dotted names go into `config={...}`.
    """

    def __init__(self, id: str, **settings: object) -> None:  # noqa: A002  # Faust's name
        self._id = id
        self._settings = settings
        self.made_at = users_line()
        self._command_line: dict[str, object] = {}
        self._notes: list[str] = []
        self.jobs: list[Job] = []
        """Tasks and timers of the user."""
        self.listeners = RebalanceListeners()
        """Listeners of rebalances."""
        self.agents: dict[str, Agent] = {}
        self.tables: dict[str, Table[Any, Any]] = {}
        self.table_users: dict[str, list[str]] = {}
        """Agents by the tables that they use, known with the topology; for errors."""
        self.topics: dict[str, Topic] = {}
        """Topics by name, made before the app runs; the first object with a name counts."""
        self.flows = FlowGraph(self)
        """Flows of the app."""
        self.host: Host | None = None
        """Host that runs this app; set by the driver before its tasks and services start."""

    # -- settings

    @cached_property
    def settled(self) -> SettledConfig:
        """Return the settings, with notes on them. Raises SettingError, SeveralMistakes."""
        given = self._id, self._settings, self._command_line
        return resolve_config(*given, os.environ, self.made_at)

    @property
    def conf(self) -> AppConfig:
        """Return the settings, read by Faust's names too. Raises SettingError."""
        return self.settled.config

    def earlier_ids(self) -> list[str]:
        """Return the ids of all earlier versions of the app."""
        given = self._id, self._settings
        return [
            resolve_config(*given, {**self._command_line, "version": number}, os.environ).config.id
            for number in range(1, self.conf.version)
        ]

    def override(self, **settings: object) -> None:
        """Set values from the command line, which take precedence; call before `topology`."""
        self._command_line |= settings
        vars(self).pop("settled", None)

    def finalize(self) -> None:
        """Read and check the settings. Raises SettingError."""
        _ = self.settled

    # -- parts of an app

    @declaration
    def topic(self, *names: str, **options: Any) -> Topic:
        """Return a topic, or several topics that are read alike.

            orders = app.topic("orders", value_type=Order, partitions=8)

        Args:
            *names: Names of the topics.
            **options: Types, serializers and what a new topic shall have: see `Topic`.

        Raises:
            NotSupported: an option belongs to Faust alone.
        """
        ours = self._ours(
            "app.topic", f"topic {', '.join(map(str, names))}", options, TOPIC_ARGUMENTS
        )
        made = Topic(self, names, **ours)
        if self.host is None:  # a running app has looked up its topics already
            for name in names:
                self.topics.setdefault(name, made)
        return made

    @declaration
    def agent(
        self,
        channel: Topic | str | None = None,
        *,
        name: str | None = None,
        sink: Iterable[Sink] | None = None,
        tables: Iterable[Table[Any, Any] | str] | None = None,
        on_error: Reaction | OfFaust | None = None,
        on_decode_error: Reaction | None = None,
        on_produce_error: Reaction | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Agent]:
        """Make an agent of an `async def` that iterates a stream, and may yield to its sinks.

            @app.agent(app.topic("orders"))
            async def add(orders):  # each task runs one instance
                async for order in orders:
                    totals[order["user"]] += order["price"]

        Args:
            channel: Topic to read, or its name; a topic with the agent's name unless given.
            name: Name of the agent; `module.function` unless given.
            sink: Topics, agents or functions that get what the body yields.
            tables: Tables that the agent uses, if they cannot be found in its code.
            on_error: Reaction to a record on which the body raises: a word of the setting, or a
                function of the `Failure` that returns one (None: the setting's). A function of two
                arguments is Faust's: it gets agent and error, and the setting's reaction follows.
            on_decode_error: Reaction to a record that cannot be decoded.
            on_produce_error: Reaction to an output that a broker refuses.
            **options: Options of the topic, as for `topic`, if `channel` is no Topic.

        Raises:
            NameClash: another agent has the name.
            TypeError: `channel` is not a topic.
            NotSupported: an option belongs to Faust alone.
        """
        if not isinstance(channel, Topic | str | None):
            raise TypeError(f"not a topic: {channel!r}: write @app.agent(topic), or @app.agent()")
        chosen, raised = of_agent(on_error, on_decode_error, on_produce_error)

        @declaration
        def decorate(fun: Callable[..., Any]) -> Agent:
            ours = self._ours("@app.agent", f"agent {name or name_of(fun)}", options, AGENT_OPTIONS)
            made = Agent(
                self,
                fun,
                name=name,
                channel=channel,
                sinks=sink or (),
                tables=tables,
                options=ours,
                on_failure=chosen,
                raised=raised,
            )
            _add(self.agents, made.name, made, "agent", self._id)
            return made

        return decorate

    @overload
    def Table(self, name: str, *, default: Callable[[], V], **options: Any) -> "Table[Any, V]": ...

    @overload
    def Table(self, name: str, *, default: None = None, **options: Any) -> "Table[Any, Any]": ...

    @declaration
    def Table(  # noqa: N802  # Faust's name
        self, name: str, *, default: Callable[[], Any] | None = None, **options: Any
    ) -> "Table[Any, Any]":
        """Make a table of values by key, for agents.

            totals = app.Table("totals", default=float)

        Args:
            name: Name of the table, its store and its changelog.
            default: Function that makes the value of a missing key, such as `int` or `list`.
            **options: Types, store and windows: see `Table`.

        Raises:
            NameClash: another table has the name.
            NotSupported: an option belongs to Faust alone.
        """
        ours = self._ours("app.Table", f"table {name}", options, TABLE_OPTIONS)
        if name in self.flows.stores:
            raise NameClash(f"name used twice: table {name}: a flow has it too: rename one of them")
        made: Table[Any, Any] = Table(self, name, default=default, **ours)
        _add(self.tables, name, made, "table", self._id)
        return made

    @declaration
    def flow(
        self,
        topic: Topic | str,
        *more: str,
        timestamp: Callable[[Any], Any] | None = None,
        on_error: Reaction | None = None,
        on_decode_error: Reaction | None = None,
        on_produce_error: Reaction | None = None,
        **options: Any,
    ) -> Flow:
        """Return a flow of the records of a topic, or of several.

            app.flow("lines").flat_map_values(str.split).to("words")

        Args:
            topic: Topic to read, or its name.
            *more: Names of further topics.
            timestamp: Function of the value that returns the record's time, as a datetime or in
                seconds since 1970; by default the record's own.
            on_error: Reaction to a record on which a step raises, as for `agent`.
            on_decode_error: Reaction to a record that cannot be decoded.
            on_produce_error: Reaction to an output that a broker refuses.
            **options: Options of the topic, as for `topic`, if `topic` is a name.
        """
        chosen = on_failure(on_error, on_decode_error, on_produce_error)
        return begin_flow(self, self._read(topic, more, options), timestamp, chosen)

    @declaration
    def table(
        self,
        topic: Topic | str,
        *,
        name: str | None = None,
        on_error: Reaction | None = None,
        on_decode_error: Reaction | None = None,
        on_produce_error: Reaction | None = None,
        **options: Any,
    ) -> TableFlow:
        """Return a table of the newest value of each key of a topic, for flows.

        Args:
            topic: Topic to read, or its name.
            name: Name of the table's store; the topic's name unless given.
            on_error: Reaction to a record on which a step raises, as for `agent`.
            on_decode_error: Reaction to a record that cannot be decoded.
            on_produce_error: Reaction to an output that a broker refuses.
            **options: Options of the topic, as for `topic`, if `topic` is a name.
        """
        chosen = on_failure(on_error, on_decode_error, on_produce_error)
        source = self._read_table(topic, options)
        return begin_flow(self, source, None, chosen).to_table(name or source.name)

    @declaration
    def global_table(
        self, topic: Topic | str, *, name: str | None = None, **options: Any
    ) -> GlobalTable:
        """Return a table of a topic that each worker has whole, for joins of flows by any key.

        Args:
            topic: Topic to read, or its name.
            name: Name of the table; the topic's name unless given.
            **options: Options of the topic, as for `topic`, if `topic` is a name.
        """
        source = self._read_table(topic, options)
        keys = key_codec(source)
        return GlobalTable(self.flows.table(name or source.name, source, keys, users_line()))

    def _read_table(self, topic: Topic | str, options: dict[str, Any]) -> Topic:
        """Return the topic of a table. Refuse one that passes over deletions."""
        source = self._read(topic, (), options)
        refuse_lost_deletions(source)
        return source

    def _read(self, topic: Topic | str, more: tuple[str, ...], options: dict[str, Any]) -> Topic:
        """Return the topic that a flow reads."""
        if not isinstance(topic, Topic):
            return self.topic(topic, *more, **{"allow_empty": True, **options})
        if more or options:
            raise TypeError(f"options beside a topic object: {topic}: give them to app.topic")
        return topic

    @overload
    def task(self, fun: Fun) -> Fun: ...

    @overload
    def task(
        self, fun: None = None, *, on_leader: bool = False, traced: bool = True
    ) -> Callable[[Fun], Fun]: ...

    @declaration
    def task(
        self, fun: Fun | None = None, *, on_leader: bool = False, traced: bool = True
    ) -> Fun | Callable[[Fun], Fun]:
        """Run an async function once, when a worker has started.

        Args:
            fun: Async function of the app, or of nothing.
            on_leader: Run it on one worker of the group only.
            traced: Faust's; has no effect.
        """

        @declaration
        def decorate(fun: Fun) -> Fun:
            self._ours("app.task", f"task {name_of(fun)}", {"traced": traced})
            self._add_job(fun, None, None, on_leader=on_leader)
            return fun

        return decorate if fun is None else decorate(fun)

    @declaration
    def timer(
        self,
        interval: object,
        on_leader: bool = False,
        traced: bool = True,
        name: str | None = None,
        max_drift_correction: float = 0.1,
    ) -> Callable[[Fun], Fun]:
        """Run an async function at intervals, the first time after one interval.

            @app.timer("10s")
            async def beat():
                await app.send("beats", value="alive")

        Args:
            interval: Duration: seconds, or a text such as `10s`.
            on_leader: Run it on one worker of the group only.
            traced: Faust's; has no effect.
            name: Name for the log; the function's name unless given.
            max_drift_correction: Faust's; has no effect.

        Raises:
            ValueError: `interval` is no duration above 0.
        """
        interval_s = seconds(interval)
        if not 0 < interval_s < float("inf"):
            raise ValueError(f"not an interval: {interval!r}: write 500ms, 60s or 10m")

        @declaration
        def decorate(fun: Fun) -> Fun:
            given = {"traced": traced, "max_drift_correction": max_drift_correction}
            self._ours("app.timer", f"timer {name or name_of(fun)}", given)
            self._add_job(fun, name, interval_s, on_leader=on_leader)
            return fun

        return decorate

    def on_assigned(self, fun: Listens) -> Listens:
        """Call a function after each rebalance, with the partitions that are new to this worker.

        Args:
            fun: Function of a frozenset of partitions, which may be empty; plain or async. An
                exception ends the worker.
        """
        self.listeners.assigned.append(fun)
        return fun

    def on_revoked(self, fun: Listens) -> Listens:
        """Call a function with partitions that go to another worker.

        The partitions are stopped and committed, and move when the function returns.

        Args:
            fun: Function of a frozenset of partitions; plain or async. An async function may
                wait, up to the setting `revoke_timeout`.
        """
        self.listeners.revoked.append(fun)
        return fun

    def on_lost(self, fun: Listens) -> Listens:
        """Call a function with partitions that another worker may run already.

        Without such a function, those of `on_revoked` are called.

        Args:
            fun: Function of a frozenset of partitions; plain or async.
        """
        self.listeners.lost.append(fun)
        return fun

    def _ours(
        self, call: str, where: str, given: Mapping[str, Any], allowed: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the arguments without those of Faust alone. Raises NotSupported, TypeError."""
        ours, notes = sifted(call, where, given, allowed)
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

    # -- the topology

    def topology(self) -> Topology:
        """Build the graph; inspect the agents' bodies, run nothing.

        Raises:
            TopologyError: the graph is not valid.
            SettingError: a setting is not valid.
            SeveralMistakes: there are several of these.
        """
        mistakes = Mistakes()
        with mistakes.noted():
            _ = self.conf
        mistakes.check()  # nothing else can be known without the settings
        nodes: dict[str, StoreNode] = {}
        for name, table in self.tables.items():
            with mistakes.noted(table.made_at):
                nodes[name] = table.node()
        found: list[tuple[Agent, BodyUses]] = []
        stages: list[SubTopology] = []
        topics: list[TopicSpec] = []
        for agent in self.agents.values():
            with mistakes.noted(agent.made_at):
                found.append((agent, touched := reached(self, agent, nodes)))
                stages += agent.stages(touched)
                topics += agent.specs(touched)
        self.table_users = {
            name: [agent.name for agent, touched in found if node in touched.stores]
            for name, node in nodes.items()
        }
        with mistakes.noted():
            stages += self.flows.stages()
            topics += self.flows.specs()
        used = {store.name for stage in stages for store in stage.stores}
        topics += self._other_specs(topics, used, mistakes)
        with mistakes.noted():
            topics = self._with_dead_letters(topics, stages)
        notes = self._all_notes(found, used)
        otherwise = [each.otherwise for _, touched in found for each in touched.derived]
        places = {name: agent.made_at for name, agent in self.agents.items()}
        with mistakes.noted():
            made = build(self.conf.id, stages, topics, notes, filter(None, otherwise), places)
        mistakes.check()
        return made

    def _other_specs(
        self, known: Iterable[TopicSpec], used: Collection[str], mistakes: Mistakes
    ) -> list[TopicSpec]:
        """Return the specs of the changelogs of used tables, and of topics that no agent uses."""
        made: list[TopicSpec] = []
        for name, table in self.tables.items():
            if name in used:
                with mistakes.noted(table.made_at):
                    made.append(table.spec())
        elsewhere = [topic for job in self.jobs for topic in sends_to(self, job.fun)]
        elsewhere += self.topics.values()  # users can send to a topic by its name alone
        names = {spec.name for spec in (*known, *made)}
        for topic in elsewhere:
            with mistakes.noted(topic.made_at):
                specs = topic.specs(TopicKind.OUTPUT)
                made += [spec for spec in specs if spec.name not in names]
        return made

    def _all_notes(
        self, found: Collection[tuple[Agent, BodyUses]], used: Collection[str]
    ) -> list[str]:
        """Return the notes for the user who starts the app."""
        notes = [*self._notes, *(touched.note for _, touched in found if touched.note)]
        idle = sorted(self.tables.keys() - used)
        notes += [
            f"table that no agent uses: {name}: nothing writes to it: use it in an agent, or "
            "leave it out"
            for name in idle
        ]
        derived = [each for _, touched in found for each in touched.derived if each.otherwise]
        shared = [each.topic.name for each in derived if each.otherwise != each.topic.name]
        if shared and self.conf.repartition_names == "faust":
            notes.append(
                f"topics without the app's id: {', '.join(sorted(shared))}: every app, and every "
                "version of this one, that has such an agent reads and deletes the same records: "
                "set repartition_names=app if that is not meant"
            )
        return notes

    def _with_dead_letters(
        self, topics: list[TopicSpec], stages: Collection[SubTopology]
    ) -> list[TopicSpec]:
        """Return specs with that of the dead-letter topic, if a record may be sent there.

        The app may read or write the topic, too.

        Raises:
            NameClash: the topic has settings of its own.
        """
        conf = self.conf
        chosen = [conf.on_error, conf.on_decode_error, conf.on_produce_error]
        for source in (source for stage in stages for source in stage.sources):
            chosen += chain.from_iterable(source.on_failures)
        buries = any(each.buries for stage in stages for each in stage.operators)
        if not buries and not any(last_word(each) == "dlq" or callable(each) for each in chosen):
            return topics
        name = dead_letters_name(self.conf)
        if any(spec.config for spec in topics if spec.name == name):
            raise NameClash(
                f"dead-letter topic with settings of its own: {name}: leave them out, or give "
                "dlq_topic= another name"
            )
        replication = self.conf.topic_replication_factor
        made = TopicSpec(name, TopicKind.OUTPUT, None, replication, DEAD_LETTERS_CONFIG)
        kept = (replace(each, config=made.config) if each.name == name else each for each in topics)
        return [*kept, *([] if any(each.name == name for each in topics) else [made])]

    # -- the running app

    def running_host(self, what: str) -> Host:
        """Return the host that runs this app; `what` names the use, for the error.

        Raises:
            UsageError: the app does not run.
            WrongThread: the caller is on another thread than the host's.
        """
        self.check_thread(what)
        if self.host is None:
            raise UsageError(f"not running: app {self._id}: start a worker, or use a TestDriver")
        return self.host

    def check_thread(self, what: str) -> None:
        """Raise WrongThread on another thread than that of the host."""
        if self.host is not None and self.host.thread not in (None, get_ident()):
            raise wrong_thread(f"{what}, app {self._id}")

    def now_ms(self) -> int:
        """Return the driver's time in ms since 1970; 0 without a driver."""
        return 0 if self.host is None else self.host.now_ms()

    def stores(self, table: str) -> Mapping[int, CachedStore]:
        """Return a table's stores in the tasks that run here, by partition.

        Raises WrongThread.
        """
        self.check_thread(f"table {table}")
        if self.host is None:
            return {}
        self.host.warn_of_part(table)
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
        """Send one record, as `Topic.send` does.

        Args:
            channel: Topic, or its name. A name that `topic` was called with stands for that topic.
            key: Key of the record.
            value: Value of the record.
            **options: Partition, timestamp, headers and serializers, as for `Topic.send`.
        """
        if isinstance(channel, str):
            channel = self.topics.get(channel) or Topic(self, (channel,))
        return channel.send(key=key, value=value, **options)

    def main(self) -> None:
        """Run the command line with this app.

            if __name__ == "__main__":
                app.main()

        Then `python shop.py worker` is `streamsx worker shop`.

        Raises:
            UsageError: a command imports the module.
        """
        from streamsx.__main__ import main

        if is_noting():
            line = 'if __name__ == "__main__":'
            raise UsageError(f"app.main() in an import: app {self._id}: write it below `{line}`")
        sys.argv[1:1] = ["-A", "__main__"]
        main()

    def __repr__(self) -> str:
        return f"<App: {self._id}>"


def _add(known: dict[str, Any], name: str, made: object, what: str, app: str) -> None:
    if name in known:
        raise NameClash(f"name used twice: {what} {name}, app {app}: rename one of them")
    known[name] = made
