"""Refusals of items of a request, and replies that answer each item by itself.

Code that refuses an item raises an exception, and so does a failing disk. Only this module turns
the exception into a part of the reply.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.errors import CorruptRecord
from streamsx.protocol.error_codes import ErrorCode

TELL_EVERY_S = 30.0
TOLD_MAX = 1000  # lines

logger = logging.getLogger(__name__)


class Seldom:
    """Log filter that lets the same line through at most once in `TELL_EVERY_S`.

    A full disk refuses requests that clients send again a hundred times a second.
    """

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        now = record.created
        if 0 <= now - self._told.get(line, 0) < TELL_EVERY_S:
            return False
        if len(self._told) == TOLD_MAX:
            self._told.clear()
        self._told[line] = now
        return True


logger.addFilter(Seldom())


class Refused(Exception):
    """Refusal of a request or an item: nothing was done; `answer` gives a reply's fields."""

    def __init__(self, code: ErrorCode, **said: object) -> None:
        super().__init__(code.name)
        self.code = code
        self.answer: ReplyBody = {"error_code": code, **said}


WHY = (Refused, CorruptRecord, OSError)


class NamedOnce:
    """Guard against a request that names the same thing twice.

    A repeated item costs more work than its length suggests.
    """

    def __init__(self) -> None:
        self._named: set[tuple[Hashable, ...]] = set()

    def __call__(self, *name: Hashable) -> None:
        """Note a name.

        Raises:
            Refused: The request has used this name before.
        """
        if name in self._named:
            raise Refused(ErrorCode.INVALID_REQUEST)
        self._named.add(name)


def why_not(error: Exception) -> ReplyBody:
    """Return the fields of a reply for one of the exceptions in `WHY`."""
    if isinstance(error, Refused):
        return error.answer
    if isinstance(error, CorruptRecord):
        return {"error_code": ErrorCode.CORRUPT_MESSAGE}
    logger.error("The disk refused a request: %s. Make room, or look at the disk.", error)
    return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}


def each(
    asked: Iterable[Any], answer: Callable[[Any], ReplyBody], *same: str, **usual: object
) -> list[ReplyBody]:
    """Return a reply for each item: the result of `answer`, or the reason for the refusal.

    Args:
        asked: Items of the request.
        answer: Function that answers one item, or raises one of `WHY`.
        same: Fields copied from the item to the reply; None where the item lacks them.
        usual: Fields of the reply that hold unless the answer sets them.
    """
    replies = []
    for item in asked:
        reply: ReplyBody = dict(usual)
        for name in same:
            reply[name] = getattr(item, name, None)
        try:
            reply |= answer(item)
        except WHY as error:
            reply |= why_not(error)
        replies.append(reply)
    return replies
