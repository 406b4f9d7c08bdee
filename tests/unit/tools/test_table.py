"""What `streamsx table` is told."""

import argparse
import asyncio

import pytest

from streamsx.clock import SystemClock
from streamsx.errors import UsageError
from streamsx.tools.table import show


@pytest.mark.parametrize(
    ("app", "words", "form"),
    [(None, ["totals"], "APP NAME"), ("shop", ["totals", "ann", "x"], "NAME")],
)
def test_ambiguous_table_arguments_get_the_expected_form(
    app: str | None, words: list[str], form: str
) -> None:
    with pytest.raises(UsageError, match=rf"{' '.join(words)}: say {form} \[KEY\]"):
        asyncio.run(show(argparse.Namespace(app=app, words=words), SystemClock()))
