"""Compiler of the loop of a source: operators are inlined, and call functions by module names.

A record is decoded once for all branches, and only if an operator uses the value. Each branch is a
`try` block of its own, so a failure concerns that branch alone. The result of an operator gets a
variable of its own, visible only to the operators below. Results that wait for a commit leave in a
second function, operator by operator in the order of the tree.

Four operators take 185 ns, against 250 ns with node objects and 690-860 ns as a pipeline of async
generators. The text is kept in `linecache`, so that tracebacks show the source lines.

Not here: running the loop, records, and the code of an operator (`streamsx.operators`).
"""

import linecache
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent
from types import CodeType, MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from streamsx.operators.body import BODY
from streamsx.operators.operator import NO_AGGREGATE, THEN, Code, Counts, Operator, chain, indented
from streamsx.operators.timestamp import TIMESTAMP
from streamsx.processing.failure_policy import ResultStreak
from streamsx.processing.waiting import WaitingChanges, WaitingResults
from streamsx.serde.codec import Decode, Quick
from streamsx.serde.record import BLESSED
from streamsx.state.cache import GONE, CachedStore
from streamsx.state.timed_store import TimedStore
from streamsx.topology.nodes import Branch, Source

FOREVER: Final = 1 << 62
SLICE_ROWS: Final = 500
"""Results of windows that close at once, between two pauses of the loop: 5 ms."""
CommitFailed = Callable[[Exception, int], None]
"""Callback for a result that failed at a commit: the exception, number of the branch."""
Bury = Callable[[int | None, Exception], None]
"""Callback for a late record: its index in the input, None for a result; and the reason."""


class StepFailed(Protocol):
    """Callback as `LoopFailed`, for steps, of which none gives results outside of its block."""

    def __call__(
        self, index: int, error: Exception, branch: int | None, /, *, again: bool = False
    ) -> None: ...


Steps = Callable[[Iterable[tuple[Any, ...]], StepFailed], Iterator[tuple[int, bytes | None, Any]]]
"""Compiled loop that ends in a body: a generator of index, key and value."""


class LoopFailed(Protocol):
    """Callback for a failure: index of the record in the input, exception, number of the branch.

    The number is None for all branches, when the value cannot be decoded. `result`: whether it was
    a result that left at the record, outside of the record's own block. The loop goes on with the
    next record, or result, unless the callback raises. `again`: whether the loop can try the record
    again; it does so, behind a pause, if the callback returns True.
    """

    def __call__(
        self,
        index: int,
        error: Exception,
        branch: int | None,
        /,
        *,
        result: bool = False,
        again: bool = False,
    ) -> bool: ...


class Loop(NamedTuple):
    """Compiled loop of a source.

    `run` takes records as (key, value, timestamp, headers). A loop in which much may close at one
    record is a generator, which pauses between slices of results. The loop of a careful task is one
    too, which pauses ahead of each further try of a record. `commit` gives on the results
    that waited for a commit; None if no operator keeps any. `advance` closes what the clocks have
    reached without a record, or some operators, by their numbers, up to a later time, with results
    that are no newer than `newest`; a generator too, None if nothing depends on time.
    """

    run: Callable[[Iterable[tuple[Any, ...]], LoopFailed], Iterator[None] | None]
    commit: Callable[[CommitFailed], Iterator[None] | None] | None
    advance: Callable[[Mapping[int, int], CommitFailed, int], Iterator[None]] | None


@dataclass(slots=True)
class StreamClock:
    """Stream time of the records of one branch, in ms; -1 before the first record."""

    now: int


class Units(NamedTuple):
    """Calls around a unit of a careful task.

    `begin` gets the index of the record in the input, None outside of records, and the number of
    the branch. It is called only if `touched` or `muting` has an item: stores that were changed
    outside of units, and branches of which some outputs have left already. `end` raises what fails
    the record at its end.
    """

    begin: Callable[[int | None, int], None]
    end: Callable[[], None]
    touched: Collection[Any]
    muting: Collection[Any]


class Wiring(NamedTuple):
    """Objects of a task that a loop uses.

    `send_to`: sender of a topic; `stores`: by name; `pending`: results that wait for a commit, for
    each operator by its id; `counts`: of each operator, by the name of its first store;
    `clocks`: of the branches, by name; `results`: rows of results that failed, of the branches;
    `tells`: topics to which the task tells the stream time of the branches that send there;
    `tables`: global tables, by name; `stream_time`: committed one, after which no clock begins;
    `units`: what the loop of a careful task calls around each record and result of a branch;
    `bury`: senders of late records to the dead letters, of the branches;
    `sends_of`: in place of `send_to`, for branches with a reaction of their own to refused outputs.
    Loops over some branches share all that with the loop over all.
    """

    send_to: Callable[[str], Any]
    stores: Mapping[str, CachedStore]
    pending: dict[int, dict[bytes, Any]]
    counts: dict[str, Counts]
    clocks: dict[str, StreamClock]
    results: dict[str, ResultStreak]
    tells: Collection[str] = ()
    tables: Mapping[str, CachedStore] = MappingProxyType({})
    stream_time: int = FOREVER
    bury: Mapping[str, Bury] = MappingProxyType({})
    units: "Units | None" = None
    sends_of: Mapping[str, Callable[[str], Any]] = MappingProxyType({})

    def waiting(self, operator: Operator) -> dict[Any, Any]:
        """Return the results of an operator that wait for a commit."""
        made: dict[Any, Any] = {} if self.units is None else WaitingResults()
        return self.pending.setdefault(id(operator), made)

    def clock(self, branch: Branch) -> StreamClock:
        """Return the clock of a branch.

        A clock begins where the stores have closed, or at the committed stream time: a store may
        have closed further, for input that was idle or by the other side of a join.
        """
        clock = self.clocks.get(branch.agent)
        if clock is None:
            nodes = [node for each in _timed(branch.first) for node in each.stores.values()]
            stores = (self.stores[node.name] for node in nodes)
            closed = (each.closed for each in stores if isinstance(each, TimedStore))
            begin = min((each for each in closed if each >= 0), default=-1)
            if branch.first.kind != TIMESTAMP:
                begin = min(begin, self.stream_time)
            clock = self.clocks[branch.agent] = StreamClock(begin)
        return clock


RUN: Final = "def run(records, failed):\n"
LOOP: Final = "    for index, (key, raw, timestamp, headers) in enumerate(records):\n"
DECODE: Final = """\
        try:
            value = decode_value(raw)
        except Exception as error:
            failed(index, error, None)
            continue
"""
QUICK: Final = """\
        try:
            value = decode_quickly(raw)
{blessed}        except Exception:
            try:
                value = decode_value(raw)
            except Exception as error:
                failed(index, error, None)
                continue
"""
"""Decodes by a function without a Python frame, which saves 100-200 of 700 ns (`serde/codec`)."""
IF_BLESSED: Final = """\
            if type(value) is dict and BLESSED in value:
                value = decode_value(raw)
"""
KEY: Final = "decoded_{n} = branch_key_{branch}({key})"
QUICK_KEY: Final = """\
try:
    decoded_{n} = quick_key_{branch}({key})
except Exception:
    decoded_{n} = branch_key_{branch}({key})
"""
"""Decodes as `QUICK` does: 45 ns instead of 77."""
BRANCH: Final = """\
        try:
{lines}
        except Exception as error:
{drops}            failed(index, error, {number}{again})
"""
AGAIN: Final = ", again=True"
UNIT_BRANCH: Final = """\
        again = False
        while True:
            try:
{decode}{lines}
                again = False
            except Exception as error:
{drops}                again = failed(index, error, {number}, again=True)
            if not again:
                break
{ends}            yield
{binds}"""
"""Block of a branch in a careful task. A commit may pass while it pauses, so the variables of the
loop go to the stores and clocks ahead of the pause, and come anew behind it."""
DECODE_AGAIN: Final = """\
                if again:
                    value = decode_value(raw)
"""
"""Decodes for a further try, because the one that failed may have changed the value in place."""
COMMIT: Final = "\n\ndef commit(failed):\n"
ADVANCE: Final = "\n\ndef advance(ahead, failed, newest):\n"
TRIED: Final = """\
try:
{lines}
except Exception as error:
{drops}    failed({arguments})
else:
    results_{branch}.fine = True"""
"""One result among others: a result that fails does not take the others with it."""
MOVE: Final = """\
if {timestamp} > clock_{branch}:
    clock_{branch} = {timestamp}"""
CLOSE: Final = """\
if {clock} > now_{n}:
    if {clock} >= {due}:
{lines}
    now_{n} = {clock}"""
AHEAD: Final = "at_{n} = max(clock_{branch}, ahead.get({n}, -1))"
CLOSE_BEHIND: Final = """\
at_{n} = max(clock_{branch}, now_{n})
if at_{n} >= {due}:
{lines}
now_{n} = at_{n}"""
"""Closing behind the block of a record, which may itself be what is due.

The store has one time for all branches above it, for instance the sides of a join."""
INDENT: Final = " " * 12
Scope = Mapping[str, str | None]
"""Variables by the names that code uses for them; None for a key that is not decoded yet."""
ROOT: Final[Scope] = {
    **{name: name for name in ("key", "value", "raw", "timestamp", "headers")},
    "decoded": None,
}


class _Names(dict[str, str]):
    """Names in an operator's code: the record's variables, and its own with a number."""

    def __init__(
        self, scope: Mapping[str, Any], number: int, operator: Operator | None = None
    ) -> None:
        constants = {} if operator is None else operator.constants
        super().__init__({**scope, **{name: str(each) for name, each in constants.items()}})
        self._number = number

    def __missing__(self, name: str) -> str:
        return f"{name.removeprefix('new_')}_{self._number}"


class LoopText:
    """Text of the loop over some branches. Operators are numbered in the order of `walk`.

    A branch with operators that depend on stream time has a clock, which its records move: behind
    an operator that sets the timestamp if the branch begins with one. With `told` the writers of
    the topic move the clocks. Branches that send to a topic of `tells` have clocks too. `careful`:
    whether each record, and each result, is a unit.
    """

    def __init__(
        self,
        branches: Iterable[Branch],
        quick: Quick | None = None,
        *,
        told: bool = False,
        tells: Collection[str] = (),
        careful: bool = False,
    ) -> None:
        self._branches = tuple(branches)
        self._careful = careful
        self._quick = quick
        self._told = told
        self._tells = tells
        walked = (each for branch in self._branches for each in branch.first.walk())
        self.operators = tuple({id(each): each for each in walked}.values())
        self._numbers = {id(each): n for n, each in enumerate(self.operators)}
        forks = (list(branch.first.walk())[:-1] for branch in self._branches)
        self._held = {id(each) for fork in forks for each in fork if each.sends_changes}
        """Operators whose changes of rows leave when the steps behind them have not failed either.

        "A change leaves for its groups; the other way behind the fork fails; the row goes back":
        the next change would take the older value out of its group a second time.
        """
        self._commits: dict[int, list[str]] = {}
        """Lines at a commit, by the number of the operator."""

    def text(self) -> str:
        """Return the text of the generated module; `names` defines the names in the text."""
        branches = [
            block
            for n, branch in enumerate(self._branches)
            for block in (
                self._block(n, self._branch(n, branch.first), AGAIN),
                self._block(n, self._behind(n, branch.first)),
            )
        ]
        text = RUN + self._binds() + LOOP + self._decode() + "".join(branches)
        text += self._ends() + self._advance()
        commits = [line for _, lines in sorted(self._commits.items()) for line in lines]
        return text + (COMMIT + self._binds() + "\n".join(commits) + "\n" if commits else "")

    def _block(self, branch: int, lines: list[str], again: str = "") -> str:
        """Return the block of a branch; `again` if its record can be tried again."""
        if not lines:
            return ""
        drops = self._drops(branch, INDENT)
        if not (again and self._careful):
            text = "\n".join(lines)
            return BRANCH.format(lines=text, number=branch, drops=drops, again=again)
        return UNIT_BRANCH.format(
            decode=DECODE_AGAIN if self._decode() else "",
            lines="\n".join(f"    {line}" for line in lines),
            drops=self._drops(branch, INDENT + "    "),
            number=branch,
            ends=indented(self._ends(), 8),
            binds=indented(self._binds(), 8),
        )

    def _ends(self) -> str:
        """Return the lines behind the loop."""
        clocks = [f"time_{n}.now = clock_{n}\n" for n in self._clocks()]
        times = [
            f"{role}_{n}.closed = now_{n}\n"
            for n, operator in self._timed()
            for role in operator.stores
        ]
        return indented("".join((*clocks, *times)))

    def _advance(self) -> str:
        """Return the text of the function that closes what is due without a record."""
        if not self._timed():
            return ""
        lines = list[str]()
        for n, branch in enumerate(self._branches):
            for operator in _timed(branch.first):
                number = self._numbers[id(operator)]
                lines.append(AHEAD.format(n=number, branch=n))
                lines += self._close(n, operator, _clocked(n), f"at_{number}", f"error, {n}")
        closes = indented("".join(f"{line}\n" for line in lines))
        return ADVANCE + self._binds() + closes + self._ends() + "    yield from ()\n"

    def _decode(self) -> str:
        """Return the lines that decode a value, if an operator uses that of the source."""
        if not any(_reads_value(branch.first) for branch in self._branches):
            return ""
        if self._quick is None or self._quick.decode is None:
            return DECODE
        return QUICK.format(blessed=IF_BLESSED if self._quick.blessed else "")

    def _clocks(self) -> list[int]:
        """Return the numbers of the branches with a clock."""
        return [n for n, branch in enumerate(self._branches) if has_clock(branch, self._tells)]

    def _timed(self) -> list[tuple[int, Operator]]:
        """Return the operators that close something by stream time, with their numbers."""
        return [(n, each) for n, each in enumerate(self.operators) if each.code.close is not None]

    def _binds(self) -> str:
        """Return the lines ahead of the loop."""
        clocks = [f"clock_{n} = time_{n}.now\n" for n in self._clocks()]
        times = list[str]()
        for n, operator in self._timed():
            if not operator.code.moves_due:
                times.append(f"due_{n} = {operator.code.due.format_map(_Names({}, n))}\n")
            closed = ", ".join(f"{role}_{n}.closed" for role in operator.stores)
            times.append(f"now_{n} = max(({closed},))\n")
        binds = [each.code.bind.format_map(_Names({}, n)) for n, each in enumerate(self.operators)]
        return indented("".join((*clocks, *times, *binds)))

    def names(self, keys: Decode, values: Decode | None, wiring: Wiring) -> dict[str, Any]:
        """Return the objects to which the text refers, by their names in the text.

        `keys` and `values` decode; a branch may decode keys in its own way.
        """
        names: dict[str, Any] = {
            "decode_value": values, "GONE": GONE, "SLICE_ROWS": SLICE_ROWS, "BLESSED": BLESSED,
            "NO_AGGREGATE": NO_AGGREGATE, "newest": FOREVER,
            "decode_quickly": self._quick and self._quick.decode,
        }  # fmt: skip
        waiting = WaitingChanges()
        names |= {"leave": waiting.leave, "drop": waiting.drop}
        if wiring.units is not None:
            names |= wiring.units._asdict()
        for n, branch in enumerate(self._branches):
            names[f"branch_key_{n}"] = branch.keys.decode if branch.keys else keys
            names[f"quick_key_{n}"] = branch.keys and branch.keys.quick.decode
            names[f"time_{n}"] = wiring.clock(branch)
            names[f"branch_bury_{n}"] = wiring.bury.get(branch.agent)
            names[f"results_{n}"] = wiring.results.setdefault(branch.agent, ResultStreak(None))
        sends = {
            id(operator): wiring.sends_of.get(branch.agent, wiring.send_to)
            for branch in self._branches
            for operator in branch.first.walk()
        }
        for n, operator in enumerate(self.operators):
            names |= {f"{role}_{n}": function for role, function in operator.functions.items()}
            for role, node in operator.stores.items():
                names[f"{role}_{n}"] = wiring.stores[node.name]
                first = next(iter(operator.stores.values()))
                names[f"counts_{n}"] = wiring.counts.setdefault(first.name, Counts())
            for role, node in operator.tables.items():
                names[f"{role}_{n}"] = wiring.tables[node.name]
                names[f"counts_{n}"] = wiring.counts.setdefault(node.name, Counts())
            if operator.code.commit is not None:
                names[f"pending_{n}"] = wiring.waiting(operator)
            if operator.topic is not None:
                send = sends[id(operator)](operator.topic)
                names[f"send_{n}"] = waiting.holding(send) if id(operator) in self._held else send
        return names

    def _branch(self, branch: int, first: Operator) -> list[str]:
        timed = _timed(first)
        if branch not in self._clocks():
            return self._unit(branch, self._lines(first, ROOT, INDENT, branch))
        scope = _clocked(branch)
        if self._told:
            return self._unit(branch, self._lines(first, scope, INDENT, branch))
        ahead = [each for each in timed if not each.code.behind]
        if first.kind != TIMESTAMP:
            lines = self._unit(branch, self._lines(first, scope, INDENT, branch))
            return self._move(branch, ahead, scope) + lines
        n = self._numbers[id(first)]
        names = _Names(ROOT, n)
        scope["timestamp"] = f"timestamp_{n}"
        lines = _filled(first.code.block, names, INDENT, lambda _here: [])
        lines += self._move(branch, ahead, scope)
        below = (self._lines(each, scope, INDENT, branch) for each in first.then)
        return lines + self._unit(branch, [line for each in below for line in each])

    def _holds(self, branch: int) -> bool:
        """Return whether a branch has an operator whose changes wait for the end of the record."""
        return any(id(each) in self._held for each in self._branches[branch].first.walk())

    def _drops(self, branch: int, indent: str) -> str:
        """Return the line that drops the changes that wait, where a record or result has failed."""
        return f"{indent}drop()\n" if self._holds(branch) else ""

    def _unit(self, branch: int, lines: list[str], index: str = "index") -> list[str]:
        """Return the lines of a record or result: a unit, if the task is careful."""
        if lines and self._holds(branch):
            lines = [*lines, f"{lines[0][: len(lines[0]) - len(lines[0].lstrip())]}leave()"]
        if not self._careful or not lines:
            return lines
        text = "\n".join(lines)
        indent = text[: len(text) - len(text.lstrip())]
        begin = f"{indent}if touched or muting: begin({index}, {branch})"
        return [begin, *lines, f"{indent}end()"]

    def _move(self, branch: int, timed: Iterable[Operator], scope: Scope) -> list[str]:
        """Return the lines that move stream time, and close what is due operator by operator."""
        text = MOVE.format(timestamp=scope["timestamp"], branch=branch).splitlines()
        for operator in timed:
            arguments = f"index, error, {branch}, result=True"
            lines = self._close(branch, operator, scope, f"clock_{branch}", arguments)
            text += ["    " + line for line in lines]
        return [INDENT + line for line in text]

    def _close(
        self, branch: int, operator: Operator, scope: Scope, clock: str, arguments: str
    ) -> list[str]:
        """Return the lines that close what is due in one operator, by a clock."""
        n, lines, due = self._closing(branch, operator, scope, clock, arguments)
        if not operator.code.moves_due:
            lines.append(f"    due_{n} = {due}")
        body = "\n".join(indented(line, 4) for line in lines)
        asked = due if operator.code.moves_due else f"due_{n}"
        return CLOSE.format(clock=clock, n=n, due=asked, lines=body).splitlines()

    def _behind(self, branch: int, first: Operator) -> list[str]:
        """Return the lines that close behind the record what is due, operator by operator."""
        text = list[str]()
        for operator in _timed(first):
            if operator.code.behind:
                arguments = f"index, error, {branch}, result=True"
                clock = f"at_{self._numbers[id(operator)]}"
                n, lines, due = self._closing(branch, operator, _clocked(branch), clock, arguments)
                body = "\n".join(lines)
                text += CLOSE_BEHIND.format(branch=branch, n=n, due=due, lines=body).splitlines()
        return [INDENT + line for line in text]

    def _closing(
        self, branch: int, operator: Operator, scope: Scope, clock: str, arguments: str
    ) -> tuple[int, list[str], str]:
        """Return an operator's number, the lines that close, and the time at which they are due."""
        close = operator.code.close
        assert close is not None, operator.kind
        n = self._numbers[id(operator)]
        names = _Names({**scope, "clock": clock, "newest": "newest"}, n, operator)
        lines = self._results(operator, close, names, scope, branch, arguments)
        return n, lines, operator.code.due.format_map(names)

    def _results(
        self,
        operator: Operator,
        code: Code,
        names: _Names,
        scope: Scope,
        branch: int,
        arguments: str,
    ) -> list[str]:
        """Return the lines of code whose results leave outside of the block of a record."""
        below = {**_below(code, names, scope, self._numbers[id(operator)]), "index": "None"}

        def inner(here: str) -> list[str]:
            found = (self._lines(each, below, here, branch) for each in operator.then)
            return [line for lines in found for line in lines]

        ahead, result, behind = _around_results(code.block)
        if not result:
            return _filled(code.block, names, "    ", inner)
        indent = "    " + " " * (len(result) - len(result.lstrip()))
        at = "index" if arguments.startswith("index") else "None"
        lines = self._unit(branch, _filled(dedent(result), names, "    ", inner), at)
        drops = self._drops(branch, "    ")
        text = "\n".join(lines)
        tried = TRIED.format(lines=text, arguments=arguments, branch=branch, drops=drops)
        return [
            *_filled(ahead, names, "    ", inner),
            *(indent + line for line in tried.splitlines()),
            *_filled(behind, names, "    ", inner),
        ]

    def _decoded(self, n: int, branch: int, scope: Scope, indent: str) -> list[str]:
        """Return the lines that decode the key for an operator."""
        keys = self._branches[branch].keys
        is_quick = keys is not None and keys.quick.decode is not None and not keys.quick.blessed
        text = QUICK_KEY if is_quick else KEY
        filled = text.format(n=n, branch=branch, key=scope["key"])
        return [indent + line for line in filled.splitlines()]

    def _lines(self, operator: Operator, scope: Scope, indent: str, branch: int) -> list[str]:
        """Return the lines of an operator and of all below."""
        n = self._numbers[id(operator)]
        code = operator.code
        lines = list[str]()
        if "decoded" in code.uses and scope["decoded"] is None:
            lines += self._decoded(n, branch, scope, indent)
            scope = {**scope, "decoded": f"decoded_{n}"}
        names = _Names(scope, n, operator)
        below = _below(code, names, scope, n)

        def inner(here: str) -> list[str]:
            found = (self._lines(each, below, here, branch) for each in operator.then)
            return [line for lines in found for line in lines]

        if code.commit is not None and n not in self._commits:
            arguments = f"error, {branch}"
            self._commits[n] = [
                *self._results(operator, code.commit, names, scope, branch, arguments),
                f"    {names['pending']}.clear()",
            ]
        lines += _filled(code.block, names, indent, inner)
        if code.commit is not None or code.close is not None or THEN in code.block:
            return lines
        return lines + inner(indent)


def _clocked(branch: int) -> dict[str, str | None]:
    """Return the variables at the root of a branch with a clock."""
    own = {"clock": f"clock_{branch}", "bury": f"branch_bury_{branch}", "index": "index"}
    return {**ROOT, **own}


def _around_results(block: str) -> tuple[str, str, str]:
    """Cut a block into the lines of one result, and those ahead of and behind them.

    The lines of a result end with the place of the operators below, and have its indentation.
    """
    lines = block.splitlines(keepends=True)
    place = next((n for n, line in enumerate(lines) if line.strip() == THEN), None)
    if place is None:
        return block, "", ""
    depth = lines[place].index(THEN)
    first = place
    while first and not lines[first - 1][:depth].strip():
        first -= 1
    return "".join(lines[:first]), "".join(lines[first : place + 1]), "".join(lines[place + 1 :])


def _reads_value(operator: Operator) -> bool:
    """Return whether an operator, or one below, uses the value that the operator gets."""
    code = operator.code
    codes = [each for each in (code, code.commit, code.close) if each is not None]
    if any("value" in each.uses for each in codes):
        return True
    giving = [each for each in codes if THEN in each.block] or [code]
    if all("value" in each.makes for each in giving):
        return False
    return any(_reads_value(each) for each in operator.then)


def _timed(first: Operator) -> list[Operator]:
    """Return the operators of a tree that close something by stream time."""
    return [each for each in first.walk() if each.code.close is not None]


def has_clock(branch: Branch, tells: Collection[str]) -> bool:
    """Return whether a branch needs stream time, for its operators or to tell it to a topic."""
    return any(each.code.close is not None or each.topic in tells for each in branch.first.walk())


def _below(code: Code, names: _Names, scope: Scope, n: int) -> Scope:
    """Return the variables for the operators below some code."""
    found = {name: text.format_map(names) for name, text in code.expressions.items()}
    forgotten = {"decoded": None} if "key" in code.makes else {}
    return {**scope, **forgotten, **{name: f"{name}_{n}" for name in code.makes}, **found}


def _filled(block: str, names: _Names, indent: str, inner: Callable[[str], list[str]]) -> list[str]:
    """Return the lines of a block, with the operators below at `{then}`."""
    lines = list[str]()
    for line in block.splitlines():
        stripped = line.lstrip()
        here = indent + " " * (len(line) - len(stripped))
        lines += (
            (inner(here) or [f"{here}pass"])
            if stripped == THEN
            else [here + stripped.format_map(names)]
        )
    return lines


def source_text(source: Source) -> str:
    """Return the text of the loop of a source."""
    return LoopText(source.branches, source.values.quick, told=bool(source.writers)).text()


def compiled(source: Source, subtopology: int, wiring: Wiring, part: str = "") -> Loop:
    """Compile the loop of a source.

    `part` is appended to the name of the source text, so that tracebacks distinguish a loop over
    some of the source's branches from the loop over all.
    """
    told = bool(source.writers)
    careful = wiring.units is not None
    text = LoopText(
        source.branches, source.values.quick, told=told, tells=wiring.tells, careful=careful
    )
    name = f"<sub-topology {subtopology}, {source.topic}{part}>"
    module = text.text()
    names = _run(module, name, text.names(source.keys.decode, source.values.decode, wiring))
    return Loop(names["run"], names.get("commit"), names.get("advance"))


def compiled_steps(steps: Iterable[Operator], source: Source, decode: Decode | None) -> Steps:
    """Compile the loop over the steps between a source and the body of an agent.

    `decode` takes the place of the decoder of the source's values.
    """
    text = LoopText([Branch("", chain(*steps, BODY))])
    names = text.names(source.keys.decode, decode, Wiring(_no_topic, {}, {}, {}, {}, {}))
    made: Steps = _run(text.text(), f"<steps of {source.topic}>", names)["run"]
    return made


def _no_topic(topic: str) -> NoReturn:
    raise AssertionError(f"a step ahead of a body sends: {topic}")


def _run(text: str, name: str, names: dict[str, Any]) -> dict[str, Any]:
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(_code(text, name), names)  # noqa: S102  # generated here, without users' text
    return names


@lru_cache(maxsize=256)
def _code(text: str, name: str) -> CodeType:
    """Compile the text of a loop, once for all tasks of a sub-topology (1 ms each)."""
    return compile(text, name, "exec")
