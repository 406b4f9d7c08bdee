"""Operator of a tree, and the code of an operator: a block of lines in the generated loop.

A block reads the variables of one record at its place in the tree, each in braces: `{key}` in
bytes, `{decoded}` for the key as users know it, `{value}`, `{raw}` for the value in bytes,
`{timestamp}` in ms, `{headers}`, and behind a table `{old}`, the value before the change, None
without one. A block writes only the variables listed in `makes`, for instance
`{new_key}`. They belong to this operator, so that siblings in the tree do not see them. Any other
name in braces is the operator's own: a function, a store, a constant, `{send}` for the sender of
its topic, `{counts}` for its `Counts`, or a local variable. The operators below stand at `{then}`,
at its indentation; without it they follow the block.

`{index}` is the number of the record in the input, None for a result outside of the block of a
record. `{bury}` sends that record to the dead letters. Both exist in branches with stream time.

User code comes in as functions, never as text.

Not here: writing the loop (`streamsx.processing.compile`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from string import Formatter
from typing import Any, Final

from streamsx.state.layout import StoreNode

THEN: Final = "{then}"
NO_AGGREGATE: Final = "the function of an aggregate returned None: return a value"
"""Error for a function whose result is None, which stands for no value in a store."""
GIVES: Final = re.compile(r"^( *)\{then\}$", re.MULTILINE)
GIVES_COPY: Final = r"\1{new_value} = {kept}({new_value})\n\1{then}"
VALUE: Final = "{value}"
METADATA: Final = "{value}, {decoded}, {timestamp}, {headers} or []"
"""Arguments of a function of the value, and of one that sees the record's metadata too."""


@dataclass(slots=True)
class Counts:
    """Numbers of records that an operator with state did not take, since its task began.

    `skipped`: records without a key, a value or a time; `late`: records whose windows are closed.
    """

    skipped: int = 0
    late: int = 0


@dataclass(frozen=True)
class Code:
    """Block of lines. `makes` are the variables that the block redefines for the operators below.

    `expressions` redefine a variable too, by an expression that is evaluated only where an operator
    below uses the variable. `needs` are variables that must exist although the block does not use
    them. `bind` are lines ahead of the loop, once for each chunk.

    `commit` is code that runs at each commit, ahead of the seal of the stores, and not within the
    loop. The block keeps results for it in `{pending}`, a dict of the operator.

    `close` is code that runs when stream time has reached `due` of the operator's store, before the
    record that moved stream time. `{clock}` is the new stream time there. `{newest}` is the latest
    time that a result may have: where input is idle, that of the newest record. `{now}` is the
    stream time in the block. `yield` pauses the loop between two slices of results. `due` is the
    expression of the time to close at; with `moves_due` records move that time too. With `behind`
    the code runs behind the block of the record that moved stream time. `{clock}` is the new
    stream time in the block too, and `{now}` that of the last close.
    """

    block: str
    makes: tuple[str, ...] = ()
    expressions: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    bind: str = ""
    commit: "Code | None" = None
    close: "Code | None" = None
    due: str = "{store}.due"
    moves_due: bool = False
    behind: bool = False

    def giving_copies(self) -> "Code":
        """Return the code that gives on a copy of its new value, as `{kept}` makes it."""
        commit = None if self.commit is None else self.commit.giving_copies()
        return replace(self, block=GIVES.sub(GIVES_COPY, self.block), commit=commit)

    @cached_property
    def uses(self) -> frozenset[str]:
        """Return the names in braces, and what the operator needs besides."""
        text = "".join((self.block, *self.expressions.values()))
        return self.needs.union(name for _, name, _, _ in Formatter().parse(text) if name)


@dataclass(frozen=True, slots=True)
class Operator:
    """One step for a record.

    `kind`: name of the step, a part of the topology's signature; `functions`: functions that the
    code calls, by the code's names for them; `topic`: destination of a send; `stores`: stores that
    the code uses, by the code's names for them; `constants`: numbers in the code; `idle_ms`: time
    without input after which the operator closes everything, None for never; `then`: operators that
    receive the result, each on its own. `with_old` is the code where an operator below asks for the
    old value of a table's change. `undone` is that code where the operators below are a chain: if
    one of them fails, the row goes back to its old value, which is the last one that they got.
    `tables` are global tables that the code reads, by the code's names for them.
    `changes_in_place`: whether a value may change after it has been given on, because the user's
    function changes its aggregate. Operators with a store below get a copy then, as the function
    `kept` makes it. `buries`: whether the code sends records to the dead letters. `alone` is the
    code where no operator is below, and nobody gets the results: it keeps none for the commit.
    """

    kind: str
    code: Code
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    topic: str | None = None
    stores: Mapping[str, StoreNode] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    idle_ms: int | None = None
    then: tuple["Operator", ...] = ()
    with_old: Code | None = None
    undone: Code | None = None
    alone: Code | None = None
    tables: Mapping[str, StoreNode] = field(default_factory=dict)
    changes_in_place: bool = False
    buries: bool = False

    def above(self, then: tuple["Operator", ...]) -> "Operator":
        """Return this operator with others below, which may ask for old values, or keep values."""
        code = self.code
        if self.alone is not None and not then:
            code = self.alone
        if self.with_old is not None and any(each.asks_old for each in then):
            branched = len(then) > 1 or any(len(each.then) > 1 for each in then[0].walk())
            code = self.with_old if branched or self.undone is None else self.undone
        if self.changes_in_place and any(each.stores for top in then for each in top.walk()):
            code = code.giving_copies()
        return replace(self, code=code, then=then)

    @property
    def asks_old(self) -> bool:
        """Return whether this operator, or one that gets its records, uses the old value."""
        if "old" in self.code.uses:
            return True
        return "old" not in self.code.makes and any(each.asks_old for each in self.then)

    @property
    def sends_changes(self) -> bool:
        """Return whether this operator sends what depends on the row before a change."""
        return self.topic is not None and (bool(self.stores) or "old" in self.code.uses)

    def walk(self) -> Iterator["Operator"]:
        """Yield this operator and all below, each before the operators below that one."""
        yield self
        for each in self.then:
            yield from each.walk()


def chain(*steps: Operator) -> Operator:
    """Return the first of the steps, with each of the others below the one before."""
    return reduce(lambda below, step: replace(step, then=(below,)), reversed(steps))


def indented(text: str, by: int = 4) -> str:
    """Return lines with more indentation, to put them inside of a block."""
    return "".join(" " * by + line for line in text.splitlines(keepends=True))
