"""Reactions to failures that a user gives to one agent or flow, checked where they are given."""

from collections.abc import Callable, Collection
from inspect import iscoroutinefunction, signature
from typing import Any

from streamsx.app.compat import users_line
from streamsx.config import PRODUCE_REACTIONS, REACTIONS, RETRIED
from streamsx.errors import NotSupported, UsageError
from streamsx.processing.failure_policy import Failure
from streamsx.topology.nodes import OnFailure

OfFaust = Callable[[Any, Any], Any]
"""Function of agent and error, as Faust's `on_error`; plain or async."""
Reaction = str | Callable[[Failure], str | None]
"""Word of the settings, or a function of the failure that returns one; None: the setting's."""


def of_agent(error: Any, decode_error: Any, produce_error: Any) -> tuple[OnFailure, OfFaust | None]:
    """Return the reactions of an agent, checked, and Faust's `on_error` if it is given."""
    if callable(error) and not _takes(error, 1) and _takes(error, 2):
        return on_failure(None, decode_error, produce_error), error
    return on_failure(error, decode_error, produce_error), None


def on_failure(error: Any, decode_error: Any, produce_error: Any) -> OnFailure:
    """Return the reactions of an agent or a flow, checked.

    Raises:
        UsageError: it is neither a word nor a function of the failure.
        NotSupported: it is async, or takes other arguments, as Faust's of agent and error does.
    """
    if produce_error == "retry":
        raise UsageError(f"on_produce_error='retry' ({users_line()}): {RETRIED}")
    return OnFailure(
        _checked("on_error", error),
        _checked("on_decode_error", decode_error),
        _checked("on_produce_error", produce_error, PRODUCE_REACTIONS),
    )


def _checked(name: str, given: Any, reactions: Collection[str] = REACTIONS) -> Any:
    if given is None or given in reactions:
        return given
    if not callable(given):
        words = ", ".join(reactions)
        raise UsageError(
            f"not a reaction to a failure: {name}={given!r} ({users_line()}): write one of "
            f"{words}, or a function of the failure that returns one"
        )
    if iscoroutinefunction(given) or not _takes(given, 1):
        raise NotSupported(
            f"not in this version: {name}={given!r} ({users_line()}): let it be a plain function "
            "of the failure, which has error, topic, partition, offset, operator and record"
        )
    return given


def _takes(fun: Any, count: int) -> bool:
    try:
        signature(fun).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # builtins in C have no signature
        return True
    return True
