"""Apps whose tasks can be made to fail, on their first attempt only; or to take for ever."""

import os
import signal
import threading
from pathlib import Path

from pyspark import TaskContext

from streamsx import App, Stream

frail = App("frail", topic_partitions=2)
seen = frail.Table("seen", default=int, key_type=str)
told = frail.topic("told", value_type=str, value_serializer="raw")


def executor() -> int:
    """Return the JVM of the executor: a task's process is a grandchild of it."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


@frail.agent(frail.topic("words", value_type=str, value_serializer="raw"), name="see")
async def see(stream: Stream[str]) -> None:
    async for word in stream:
        seen[word] += 1
        context = TaskContext.get()
        if word in ("die", "kill") and context is not None and context.attemptNumber() == 0:
            os.kill(os.getpid() if word == "die" else executor(), signal.SIGKILL)
        await told.send(key=word, value=str(seen[word]))


endless = App("endless", topic_partitions=1)


@endless.agent(endless.topic("words", value_type=str, value_serializer="raw"))
async def hold(stream: Stream[str]) -> None:
    async for _ in stream:
        os.write(os.open(os.environ["HELD"], os.O_WRONLY), b"worker\n")
        threading.Event().wait()
