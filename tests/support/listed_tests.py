"""Tests named in a table: `path::test`, the path from the folder of tests."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`([^`]+)::(\w+)`")


@cache
def names_in(path: str) -> set[str]:
    """Return the functions of a file, and the names that it assigns, as hypothesis does for a
    machine.
    """
    body = ast.parse((TESTS / path).read_text()).body
    targets = [target for each in body if isinstance(each, ast.Assign) for target in each.targets]
    functions = (each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    assigned = {target.id for target in targets if isinstance(target, ast.Name)}
    return assigned | {each.name for each in functions}


def missing(cell: str) -> list[str]:
    """Return the tests of a cell that do not exist."""
    named = NAMED.findall(cell)
    return [f"{path}::{name}" for path, name in named if name not in names_in(path)]
