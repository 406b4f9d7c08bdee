"""Points at which a test kills this process, as a crash would: `STREAMSX_FAULT=NAME[:nth]`.

`NAME` is a point below. The process dies when the point is reached for the `nth` time, 1 by
default. Crash points are for tests only: without the variable a point does nothing, and no point
is passed once per record.

| point           | state at the crash                                                           |
|-----------------|------------------------------------------------------------------------------|
| processing      | records were handed to a task, none of them is committed                     |
| after_seal      | changelog rows are being sent, none need have arrived                        |
| after_flush     | changelog and outputs are acknowledged, offsets are old                      |
| after_txn_offsets | the offsets are staged in a transaction that is open                      |
| during_end      | the end of the transaction is asked for, and not answered                    |
| before_adopt    | Kafka is complete, the stores are one commit old                             |
| during_write    | some rows of a commit are in a store, the position is old                    |
| after_write     | everything is done                                                           |
| during_restore  | some rows of a changelog are in a store                                      |
| during_snapshot | a store is being built from a snapshot, beside the empty one                 |
| during_wipe     | a store is empty, and has no position                                        |
| before_manifest | a batch on Spark is in the sink and the changelogs, none of the batch counts |
| after_manifest  | all of the batch counts, Spark does not know                                 |
"""

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "STREAMSX_FAULT"


class CrashPoint:
    """Point at which this process kills itself; an empty text names none."""

    def __init__(self, text: str) -> None:
        self._name, _, nth = text.partition(":")
        self._left = int(nth or 1)

    def reached(self, name: str) -> None:
        """Count a passage of the point `name`, and kill the process at the `nth` of its point."""
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


point: Callable[[str], None] = CrashPoint(os.environ.get(VARIABLE, "")).reached
"""Function that is called at each point; a simulation replaces it."""
