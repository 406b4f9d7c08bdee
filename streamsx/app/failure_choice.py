"""Reactions to failures that a user gives to one agent or flow, checked where they are given."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from streamsx.app.declaration import declaration
from streamsx.app.users_code import users_line
from streamsx.config import (
    OF_THE_FAILURE,
    PRODUCE_REACTIONS,
    REACTIONS,
    RETRY,
    Retry,
    decode_reaction,
    produce_reaction,
    reaction,
    retry_of,
    takes,
    takes_failure,
)
from streamsx.errors import NotSupported, UsageError
from streamsx.processing.failure_policy import Failure
from streamsx.topology.nodes import OnFailure

OfFaust = Callable[[Any, Any], Any]
"""Function of agent and error, as Faust's `on_error`; plain or async."""
Reaction = str | Retry | Callable[[Failure], str | Retry | None]
"""Word of the settings, what `retry` returns, or a function of the failure that returns either;
None: the setting's."""


@declaration
def retry(attempts: int = 3, backoff: object = "1s", then: str = "dlq") -> Retry:
    """Return the reaction that tries a failed record again, for `on_error`.

        app.flow("orders", on_error=streamsx.retry(attempts=5, backoff="2s", then="log"))

    Only the task of the record waits between two tries. What the failed try did in tables and
    outputs is undone.

    Args:
        attempts: Number of tries in all.
        backoff: Duration of the first wait. Each further one takes twice as long, a minute at most.
        then: Reaction after the last try: `log`, `dlq`, `stop_task`, `stop` or `stop_app`.

    Raises:
        UsageError: an argument is wrong.
    """
    try:
        return retry_of(attempts, backoff, then)
    except ValueError as error:
        raise UsageError(f"bad retry: {error} ({users_line()})") from None


def of_agent(error: Any, decode_error: Any, produce_error: Any) -> tuple[OnFailure, OfFaust | None]:
    """Return the reactions of an agent, checked, and Faust's `on_error` if it is given."""
    if callable(error) and not takes(error, 1) and takes(error, 2):
        return on_failure(None, decode_error, produce_error), error
    return on_failure(error, decode_error, produce_error), None


def on_failure(error: Any, decode_error: Any, produce_error: Any) -> OnFailure:
    """Return the reactions of an agent or a flow, checked.

    Raises:
        UsageError: it is neither a word nor a function of the failure.
        NotSupported: it is async, or takes other arguments, as Faust's of agent and error does.
    """
    return OnFailure(
        _checked("on_error", error),
        _checked("on_decode_error", decode_error),
        _checked("on_produce_error", produce_error),
    )


WORDS: Final[Mapping[str, tuple[Callable[[object], Any], tuple[str, ...]]]] = {
    "on_error": (reaction, (*REACTIONS, RETRY)),
    "on_decode_error": (decode_reaction, REACTIONS),
    "on_produce_error": (produce_reaction, PRODUCE_REACTIONS),
}
"""Parser and words of each reaction."""


def _checked(name: str, given: Any) -> Any:
    parse, words = WORDS[name]
    if given is None:
        return None
    if not callable(given):
        try:
            return parse(given)
        except ValueError as error:
            or_words = f"write one of {', '.join(words)}, or a function of the failure"
            why = str(error) if RETRY in str(given) else f"{or_words} that returns one"
            raise UsageError(
                f"bad reaction to a failure: {name}={given!r} ({users_line()}): {why}"
            ) from None
    if not takes_failure(given):
        raise NotSupported(
            f"bad reaction to a failure: {name}={given!r} ({users_line()}): {OF_THE_FAILURE}; "
            "on_error of an agent may be a function of agent and error, too"
        )
    return given
