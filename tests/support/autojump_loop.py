"""Event loop whose time jumps to the next call that is due.

It serves stories of pauses and heartbeats that use no socket: no test waits, and no machine is too
slow.
"""

import asyncio


class AutojumpLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]
