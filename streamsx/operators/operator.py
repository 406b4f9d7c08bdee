"""Operator of a tree, and the code of an operator: a block of lines in the generated loop.

A block reads the variables of one record at its place in the tree, each in braces: `{key}` in
bytes, `{decoded}` for the key as users know it, `{value}`, `{raw}` for the value in bytes,
`{timestamp}` in ms, `{headers}`. A block writes only the variables listed in `makes`, for instance
`{new_key}`. They belong to this operator, so that siblings in the tree do not see them. `{name}`
stands for a function of the operator. `{send}` stands for the sender of the operator's topic. The
operators below stand at `{then}`, once or several times, at its indentation; without it they
follow the block.

User code comes in as functions, never as text.

Not here: writing the loop (`streamsx.processing.compile`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from string import Formatter
from typing import Any, Final

THEN: Final = "{then}"


@dataclass(frozen=True)
class Code:
    """Block of lines. `makes` are the variables that the block redefines for the operators below.

    `expressions` redefine a variable too, by an expression that is evaluated only where an operator
    below uses the variable. `needs` are variables that must exist although the block does not use
    them.
    """

    block: str
    makes: tuple[str, ...] = ()
    expressions: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Return the lines of the block, with a line for the operators below."""
        lines = tuple(self.block.splitlines())
        return lines if any(line.strip() == THEN for line in lines) else (*lines, THEN)

    @cached_property
    def uses(self) -> frozenset[str]:
        """Return the names in braces, and what the operator needs besides."""
        text = "".join((self.block, *self.expressions.values()))
        return self.needs.union(name for _, name, _, _ in Formatter().parse(text) if name)


@dataclass(frozen=True, slots=True)
class Operator:
    """One step for a record.

    `kind`: name of the step, a part of the topology's signature; `functions`: functions that the
    code calls, by the code's names for them; `topic`: destination of a send; `then`: operators that
    receive the result, each on its own.
    """

    kind: str
    code: Code
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    topic: str | None = None
    then: tuple["Operator", ...] = ()

    def walk(self) -> Iterator["Operator"]:
        """Yield this operator and all below, each before the operators below that one."""
        yield self
        for each in self.then:
            yield from each.walk()


def chain(*steps: Operator) -> Operator:
    """Return the first of the steps, with each of the others below the one before."""
    return reduce(lambda below, step: replace(step, then=(below,)), reversed(steps))
