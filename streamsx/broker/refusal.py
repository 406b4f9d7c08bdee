"""Why an item of a request is not done, and the answers to all of them, each by itself.

What refuses raises, and so does a disk; here alone it becomes a part of an answer.
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
    """Lets the same line into a log but once in `TELL_EVERY_S`: what a full disk refuses, clients
    try again a hundred times a second.
    """

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        line, now = record.getMessage(), record.created
        if 0 <= now - self._told.get(line, 0) < TELL_EVERY_S:
            return False
        if len(self._told) == TOLD_MAX:
            self._told.clear()
        self._told[line] = now
        return True


logger.addFilter(Seldom())


class Refused(Exception):
    """Nothing was done; `answer` says why, in the fields of a reply."""

    def __init__(self, code: ErrorCode, **said: object) -> None:
        super().__init__(code.name)
        self.code = code
        self.answer: ReplyBody = {"error_code": code, **said}


WHY = (Refused, CorruptRecord, OSError)


class NamedOnce:
    """Refuses what one request names for the second time: such a one costs more than it is long."""

    def __init__(self) -> None:
        self._named: set[tuple[Hashable, ...]] = set()

    def __call__(self, *name: Hashable) -> None:
        """Raises Refused."""
        if name in self._named:
            raise Refused(ErrorCode.INVALID_REQUEST)
        self._named.add(name)


def why_not(error: Exception) -> ReplyBody:
    """What a reply says instead, when one of `WHY` was raised."""
    if isinstance(error, Refused):
        return error.answer
    if isinstance(error, CorruptRecord):
        return {"error_code": ErrorCode.CORRUPT_MESSAGE}
    logger.error("storage_failed error=%r", str(error))
    return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}


def each(
    asked: Iterable[Any], answer: Callable[[Any], ReplyBody], *same: str, **usual: object
) -> list[ReplyBody]:
    """What `answer` says of each, or why it is refused.

    The fields `same` are repeated from what was asked, if they are there; `usual` stands in a reply
    that says nothing else of it.
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
