"""Points at which a test kills this process, as a crash would: `STREAMSX_FAULT=NAME[:nth]`.

`NAME` is a point below, `nth` counts how often it is reached, from 1. Tests only: without the
variable a point does nothing, and none of them is passed per record.

| point           | what is done, and what is not                                               |
|-----------------|-----------------------------------------------------------------------------|
| processing      | records were handed to a task, nothing of them is committed                  |
| after_seal      | changelog rows are being sent, none need be there                            |
| after_flush     | changelog and outputs are acknowledged, offsets are old                      |
| before_adopt    | Kafka is complete, the stores are one commit old                             |
| during_write    | some rows of a commit are in a store, its position is old                    |
| after_write     | everything                                                                   |
| during_restore  | some rows of a changelog are in a store                                      |
| during_snapshot | a store is being built from a snapshot, beside the empty one                 |
| during_wipe     | a store is empty, and knows no position                                      |
| before_manifest | a batch on Spark is in its sink and its changelogs, nothing of it counts     |
| after_manifest  | all of it counts, Spark does not know                                        |
"""

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "STREAMSX_FAULT"


class CrashPoint:
    """Where this process dies, if anywhere."""

    def __init__(self, text: str) -> None:
        self._name, _, nth = text.partition(":")
        self._left = int(nth or 1)

    def reached(self, name: str) -> None:
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


point: Callable[[str], None] = CrashPoint(os.environ.get(VARIABLE, "")).reached
"""Called at each point; a simulation puts its own here."""
