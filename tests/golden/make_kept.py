"""Makes what a commit leaves behind on disks, for later commits to go on from.

    unshare --uts sh -c 'hostname kept && python -m tests.golden.make_kept'

A word count runs on the embedded broker and stops. Kept are the broker's directory, the state
directory of worker a, and a snapshot. Worker b went on after a had stopped, so state and snapshot
both lie behind the changelog.

RocksDB writes the name of the host into its files: hence one that says nothing. Other archives come
with other ids and times, so literals of `test_kept` change too. Run it by hand, and only when what
an older commit wrote need not be read any more.
"""

import shutil
import socket
import tarfile
from collections import Counter
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import Rdict

from streamsx.state.api import FORMAT
from streamsx.state.rocks import RocksMemory, options
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.snapshots import chain_of, make
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

DATA = Path(__file__).parent / "data"
APP = "wc-kept"
PARTITIONS = 2
FIRST_LINES, SECOND_LINES = 120, 30
LINES = [f'every word-{n} ünï-{n % 7} "q{n % 3}"' for n in range(40)]
HOST = "kept"
FOR_EVER_MS = str(100 * 365 * 24 * 3600 * 1000)
"""Kept records and snapshots must not grow too old."""
LEFT_OUT = {"LOG", "LOCK", "lock"}
"""Logs of RocksDB and ids of processes; both hold what is of one machine alone."""


class KeptWordCount(WordCount):
    """Word count under a name that stays, over lines of its own."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, partitions=PARTITIONS, between=f"{APP}-words")
        self.app = APP
        self.env["WORDCOUNT_NAME"] = APP
        self._lines = cycle(LINES)

    def replayed(self) -> Counter[str]:
        """Count the words of all lines that the broker has."""
        found: Counter[str] = Counter()
        for tp in self.lines:
            for record in self.client.read(tp):
                found.update((record.value or b"").decode().split())
        return found

    def make_topics(self) -> None:
        """Create topics that keep everything for ever."""
        for topic in ("lines", "words"):
            self.client.create(f"{APP}-{topic}", PARTITIONS, {"retention.ms": "-1"})
        configs = {"cleanup.policy": "compact", "delete.retention.ms": FOR_EVER_MS}
        self.client.create(f"{APP}-counts-changelog", PARTITIONS, configs)


def main() -> None:
    if socket.gethostname() != HOST:
        raise SystemExit(f"host is not named {HOST}: run it as the docstring says")
    with TemporaryDirectory(prefix="kept-") as made:
        folder = Path(made)
        run(folder)
        DATA.mkdir(exist_ok=True)
        pack(folder / "broker", "broker")
        pack(folder / "a", "state")
        pack(folder / "snapshots", "snapshot")


def run(folder: Path) -> None:
    """Leave a stopped broker, a stopped worker and a snapshot in the folder."""
    with EmbeddedBroker(folder / "broker") as broker:
        wordcount = KeptWordCount(broker.bootstrap)
        wordcount.make_topics()
        with wordcount, Workers(broker.bootstrap, folder, env=wordcount.env) as workers:
            count(workers, wordcount, "a", FIRST_LINES)
            take_snapshot(folder, wordcount, layout_of(folder / "a"))
            count(workers, wordcount, "b", SECOND_LINES)
            assert wordcount.counts() == wordcount.words == wordcount.replayed()


def count(workers: Workers, wordcount: KeptWordCount, name: str, lines: int) -> None:
    """Let one worker count some lines, from its start to its end."""
    workers.start(name, commit_interval="100ms")
    wordcount.send(lines)
    workers.until(lambda: wordcount.drained, "drained")
    assert workers.stop(name) == [0], workers.log(name)


def layout_of(state: Path) -> str:
    """Return what a store of a stopped worker says of itself."""
    memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)
    db = Rdict(str(state / APP / "stores" / "counts" / "0"), options(memory))
    text = bytes(db[FORMAT] or b"").decode()
    db.close()
    return text


def take_snapshot(folder: Path, wordcount: KeptWordCount, layout: str) -> None:
    """Make a snapshot of what the changelogs have now, in two files for each partition."""
    ends = wordcount.client.ends(wordcount.changelog)
    parts = {
        tp.partition: (chain_of((r.key, r.value) for r in wordcount.client.read(tp)), ends[tp])
        for tp in wordcount.changelog
    }
    counts = {tp.topic: PARTITIONS for tp in wordcount.counted}
    make(f"file://{folder}/snapshots", folder, APP, "counts", layout, parts, counts)


def pack(folder: Path, name: str) -> None:
    """Write the folder as a compressed archive, without what is of one machine or process."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        base = Path(member.name).name
        if base in LEFT_OUT or base.startswith("LOG.old"):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(DATA / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(folder, name, filter=kept)


def unpack(name: str, to: Path) -> Path:
    """Unpack a kept archive; its folder bears the archive's name."""
    shutil.rmtree(to / name, ignore_errors=True)
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(to, filter="data")
    return to / name


if __name__ == "__main__":
    main()
