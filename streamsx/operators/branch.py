"""Operator `branch`: passes a record on to the first branch whose condition the record fulfils.

The node counts the branch; a node `on_branch` for each branch passes on the records of its number.
A record that fulfils no condition has the last number.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from streamsx.operators.operator import Code, Operator

ON_BRANCH: Final = Code("if {branch} == {number}:\n    {then}")


def branch(conditions: Sequence[Callable[[Any], Any]]) -> Operator:
    functions = {f"condition{n}": each for n, each in enumerate(conditions)}
    tests = "".join(f"{n} if {{condition{n}}}({{value}}) else " for n in range(len(conditions)))
    code = Code(f"{{new_branch}} = {tests}{len(conditions)}", makes=("branch",))
    return Operator("branch", code, functions)


def on_branch(number: int) -> Operator:
    return Operator("on_branch", ON_BRANCH, constants={"number": number})
