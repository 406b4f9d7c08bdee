"""Why an item of a request is not done, and the answers to all of them, each by itself. Pure.

What refuses raises; here alone it becomes a part of an answer.
"""

from collections.abc import Callable, Iterable
from typing import Any

from streamsx.broker.events import ReplyBody
from streamsx.errors import CorruptRecord
from streamsx.kafka.errors import ErrorCode


class Refused(Exception):
    """Nothing was done; `answer` says why, in the fields of a reply."""

    def __init__(self, code: ErrorCode, **said: object) -> None:
        super().__init__(code.name)
        self.code = code
        self.answer: ReplyBody = {"error_code": code, **said}


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
        except Refused as why:
            reply |= why.answer
        except CorruptRecord:
            reply["error_code"] = ErrorCode.CORRUPT_MESSAGE
        replies.append(reply)
    return replies
