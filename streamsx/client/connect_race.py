"""Racing attempts: the next begins when one fails or takes long, as in RFC 8305 for connections."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from streamsx.errors import BrokerUnreachable

T = TypeVar("T")
U = TypeVar("U")


async def first_success(
    tried: Iterable[U], attempt: Callable[[U], Awaitable[T]], patience_s: float
) -> T:
    """Return the result of the first attempt that succeeds, and cancel the others.

    The next attempt begins when one has failed, or after `patience_s` seconds. An error other than
    BrokerUnreachable ends the race and is raised.

    Raises:
        BrokerUnreachable: every attempt failed; the message has the reason of each.
    """
    left = deque(tried)
    attempts = list[asyncio.Future[T]]()
    failed = list[str]()
    try:
        while left or len(failed) < len(attempts):
            if left:
                attempts.append(asyncio.ensure_future(attempt(left.popleft())))
            waiting = [each for each in attempts if not each.done()]
            if waiting:
                first = asyncio.FIRST_COMPLETED
                timeout_s = patience_s if left else None
                await asyncio.wait(waiting, timeout=timeout_s, return_when=first)
            ended = [each for each in attempts if each.done()]
            for each in ended:
                if not isinstance(each.exception(), BrokerUnreachable):
                    return each.result()
            failed = [str(each.exception()) for each in ended]
    finally:
        for each in attempts:
            each.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
    raise BrokerUnreachable("; ".join(failed))
