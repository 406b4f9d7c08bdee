"""Writes the loop of one branch: its operators inline, their functions as names of the module.

185 ns for four operators, against 250 with node objects and 690-860 as a pipeline of async
generators. The text stands in `linecache`, so that tracebacks show it.

Runs nothing and knows no records; what an operator does is `streamsx.operators`.
"""

import linecache
from collections.abc import Callable, Iterable
from typing import Any

from streamsx.operators.stateless import FRAGMENTS
from streamsx.topology.nodes import Operator, Source

Branch = tuple[Operator, ...]
Loop = Callable[[Iterable[tuple[Any, ...]], Callable[[int, Exception], None]], int]
"""Records as (key, value, timestamp, headers) and what is told of the undecodable; how many."""

LOOP = """\
def run(records, undecodable):
    index = -1
    try:
        for index, (key, raw, timestamp, headers) in enumerate(records):
            try:
                value = decode_value(raw)
            except Exception as error:
                undecodable(index, error)
                continue
{lines}
    except Exception as error:
        raise RecordFailed(index) from error
    return index + 1
"""
INDENT = " " * 12


class RecordFailed(Exception):
    """args: index of the record among those given. The cause is chained."""


def source_text(branch: Branch) -> str:
    """The module's text; `names` has what it refers to."""
    lines = [
        INDENT + line.format(**local_names(n, operator))
        for n, operator in enumerate(branch)
        for line in FRAGMENTS[operator.kind].lines
    ]
    return LOOP.format(lines="\n".join(lines))


def local_names(n: int, operator: Operator) -> dict[str, str]:
    """What the functions of the nth operator are called in the module."""
    return {role: f"{role}_{n}" for role in [*operator.functions, "send"]}


def compiled(
    source: Source, branch: Branch, subtopology: int, send_to: Callable[[str], Any]
) -> Loop:
    """The loop of one branch of a source; `send_to` gives the sender of a topic."""
    names: dict[str, Any] = {"RecordFailed": RecordFailed, "decode_value": source.decode_value}
    for n, operator in enumerate(branch):
        local = local_names(n, operator)
        names.update({local[role]: function for role, function in operator.functions.items()})
        if operator.topic is not None:
            names[local["send"]] = send_to(operator.topic)
    text = source_text(branch)
    name = f"<sub-topology {subtopology}, {source.topic} to {branch[-1].topic}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)  # noqa: S102  # our text; users' code is never text
    loop: Loop = names["run"]
    return loop
