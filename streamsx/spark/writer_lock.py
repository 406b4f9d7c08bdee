"""Writer lock: one process at a time works on an app's state, and one side on its topics.

    URI/running/UNTIL_MS-PID-RUN-HOST

A process that makes snapshots under a URI keeps a mark there, and is taken to live at least until
the time in the mark. Workers are members of the app's group: a process that writes to the
changelogs and topics of the app begins only when the group has no members. The offsets that the
group has committed name the place of the state meanwhile, for workers and for queries in other
places.
"""

import asyncio
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Final, Self

from streamsx.app.lookup import app_named
from streamsx.assignor.claims import read_members
from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.config import Config
from streamsx.errors import GroupNotEmpty, SnapshotFailed, StateOnSpark, UsageError, WorldError
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.spark.compact import COMPACT
from streamsx.spark.plan import Stage
from streamsx.spark.publish import options_of
from streamsx.spark.source import SourceOptions
from streamsx.state.snapshot import Manifest, Position
from streamsx.state.snapshot_files import SnapshotFiles, absolute
from streamsx.topology.build import Topology

RUNNING: Final = "running"
MARK: Final = re.compile(r"(\d+)-(\d+)-\w+-(.+)")
RENEW_S: Final = 5
SILENT_S: Final = 60
BROKERS_LOOK_S: Final = 20.0
"""Time that brokers may take to find a transaction that has timed out; Kafka looks every 10 s."""
LOOK_S: Final = 0.1


class WriterLock:
    """Lock (`with`) of the process that works for the app MODULE[:ATTR].

    The lock renews its mark for as long as its owner is `alive`, busy or not. Only the lock deletes
    the mark.

    `writes` is set for a process that writes to topics of the app, or acts in place of its group.
    `force` ignores the marks of others.

    Raises:
        UsageError: another query is running.
        GroupNotEmpty: workers are running.
        StateOnSpark: the state is in another place.
        SnapshotFailed: the files cannot be read or written.
        WorldError: the brokers do not answer, or a worker's transaction stays open.
    """

    def __init__(
        self, name: str, files: SnapshotFiles, *, writes: bool, force: bool = False,
        say: Callable[[str], object] = bool,
    ) -> None:  # fmt: skip
        self._files = files
        self._writes = writes
        self._force = force
        self._say = say
        self._app = name
        self._me = f"{os.getpid()}-{uuid.uuid4().hex}-{socket.gethostname()}"
        self._mark: str | None = None
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="at work", daemon=True)
        self.alive: Callable[[], bool] = lambda: True

    def __enter__(self) -> Self:
        if self._writes:
            uri = None if self._force else absolute(self._files.uri)
            app = app_named(self._app)
            ask = SourceOptions(options_of(self._app)).ask
            ask(lambda cluster: refuse_workers(cluster, app.conf, uri))
            ask(lambda cluster: transactions_over(cluster, app.conf, app.topology()))
        # First the mark, then the look at others: of two processes that begin at once, each sees
        # the mark of the other.
        self._renew()
        try:
            self._refuse_others()
        except BaseException:
            self._delete(self._mark)
            raise
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._over.set()
        self._keeper.join()

    def _refuse_others(self) -> None:
        now_ms = int(SystemClock().wall() * 1000)
        names = () if self._force else self._files.names(RUNNING)
        for mark in filter(None, map(MARK.fullmatch, names)):
            until, process, host = mark.groups()
            another = f"{RUNNING}/{mark[0]}" != self._mark
            if another and now_ms < int(until) and not has_ended(process, host):
                raise UsageError(
                    f"a query is running: {self._files.uri}: process {process} on {host}: stop it, "
                    "or give --force if it is dead"
                )

    def _keep(self) -> None:
        try:
            while not self._over.wait(RENEW_S) and self.alive():
                try:
                    self._renew()
                except SnapshotFailed as error:
                    self._say(f"not renewed: {error}")
        finally:
            self._delete(self._mark)

    def _renew(self) -> None:
        """Create the next mark, then delete the last one, so that there is always a mark."""
        until = int((SystemClock().wall() + SILENT_S) * 1000)
        old = self._mark
        self._files.create(made := f"{RUNNING}/{until}-{self._me}", b"running")
        self._mark = made
        self._delete(old)

    def _delete(self, mark: str | None) -> None:
        if mark:
            try:
                self._files.delete(mark)
            except SnapshotFailed as error:
                self._say(f"a mark stays for {SILENT_S} s: {error}")


def has_ended(process: str, host: str) -> bool:
    """Return whether the process has ended, as far as this host can see."""
    if host == socket.gethostname():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # the process of another user
            pass
    return False


async def take(
    cluster: Cluster, conf: Config, tps: Collection[TopicPartition], uri: str, *, force: bool
) -> None:
    """Take the state over for Spark, before anything is written to changelogs.

    From then on no worker begins until the state under `uri` is handed over to workers. `tps` are
    all partitions that the app reads. `force` also takes the state out of another place; then two
    runs may have begun at once.

    Raises:
        GroupNotEmpty: workers are running.
        StateOnSpark: the state is in another place.
        WorldError: the brokers do not answer.
    """
    await refuse_workers(cluster, conf, None if force else absolute(uri))
    found, why = await admin.committed_now(cluster, conf.id, tps)
    if why is not None:
        raise why
    begins = await admin.bounds(cluster, tps)
    place = absolute(uri)
    places = {
        tp: (
            at if at >= 0 else begins[tp].start,
            OffsetMetadata.decode(text)._replace(spark=place).encode(),
        )
        for tp, (at, text) in found.items()
    }
    await admin.commit_offsets(cluster, conf.id, places)


async def refuse_workers(cluster: Cluster, conf: Config, uri: str | None = None) -> None:
    """Raise an error if workers are running, or if the state is not under `uri`.

    Raises:
        GroupNotEmpty: the group has members; the message names them.
        StateOnSpark: Spark has the state in another place than `uri`.
    """
    told = await admin.describe_group(cluster, conf.id)
    joined, _ = read_members([(member, metadata) for member, metadata, _ in told.members])
    if names := ", ".join(each.instance or each.id for each in joined):
        raise GroupNotEmpty(
            f"workers are running: group {conf.id}: {names}: stop them (streamsx status, SIGTERM); "
            f"one that was killed counts until its session ends, after {conf.session_timeout_s:g} s"
        )
    for _, text in (await admin.committed(cluster, conf.id)).values() if uri else ():
        if (elsewhere := OffsetMetadata.decode(text).spark) not in (None, uri):
            raise StateOnSpark(
                f"state is in another place: {conf.id}: Spark continued it in {elsewhere}, not in "
                f"{uri}: continue there, or hand it over; --force if that copy is not needed"
            )


async def transactions_over(cluster: Cluster, conf: Config, topology: Topology) -> None:
    """Wait until the transactions of the group's last workers have ended.

    The race: a worker under exactly-once is killed; another one sends records between stages behind
    the open transaction, commits, and stops. Readers of committed records do not see the records
    yet, so a run that began now would commit the group's offsets beyond them.

    Changelogs are not waited for: each partition has one writer at a time, and what a dead one has
    left open is fenced, or never counts.

    Raises:
        WorldError: a transaction stays open, or the brokers do not answer.
    """
    read = {topic for plan in topology.subtopologies for topic in plan.topics}
    counts = await admin.partition_counts(cluster, read)
    tps = [TopicPartition(topic, n) for topic in counts for n in range(counts[topic])]
    own = [tp for tp in tps if tp.topic in topology.own]
    patience_s = conf.transaction_timeout_s + BROKERS_LOOK_S
    clock = SystemClock()
    until = clock.now() + patience_s
    while True:
        _, why = await admin.committed_now(cluster, conf.id, tps)
        ends = await admin.bounds(cluster, own)
        stable = await admin.bounds(cluster, own, committed=True)
        late = ", ".join(str(tp) for tp in own if stable[tp] != ends[tp])
        if why is None and not late:
            return
        if clock.now() >= until:
            raise WorldError(
                f"a transaction stays open: {late or conf.id}: a worker has left it behind, and "
                f"the brokers have not aborted it in {patience_s:g} s: try again"
            ) from why
        await asyncio.sleep(LOOK_S)


async def commit_positions(
    cluster: Cluster, group: str, manifest: Manifest, made: Sequence[Stage], uri: str | None = None
) -> dict[TopicPartition, int]:
    """Commit the offsets of a manifest to the group, and return them.

    Without `uri` the offsets are those that a worker would commit. With `uri` their metadata names
    the place of the state on Spark.

    Inner topics are committed at their ends: every stage has read all of their records, and the
    positions of the manifest there are not offsets of Kafka. The exception is a manifest that
    compaction made, which no batch has followed yet: its positions are offsets.
    """
    inner = [
        TopicPartition(topic, n)
        for stage in made for topic in stage.inner for n in range(stage.counts[topic])
    ]  # fmt: skip
    ends = await admin.bounds(cluster, inner)
    places = {
        TopicPartition(t, n): at for t, each in manifest.positions.items() for n, at in each.items()
    }
    read = {topic for stage in made for topic in stage.external}
    at = {tp: ends[tp].high_watermark for tp in inner}
    read |= {topic for stage in made for topic in stage.inner if manifest.made_by == COMPACT}
    known = {tp: each.next for tp, each in places.items() if tp.topic in read}
    begins = await admin.bounds(cluster, known)
    at |= {tp: next_ or begins[tp].start for tp, next_ in known.items()}
    found = await admin.committed(cluster, group)
    read_back = {tp: (n, OffsetMetadata.decode(text)) for tp, (n, text) in found.items()}
    taken = {tp: each for tp, each in read_back.items() if each[1].spark}
    times = {tp: beside.stream_time for tp, (_, beside) in taken.items()}
    times |= {tp: each.stream_time for tp, each in places.items()}
    at = {tp: offset for tp, (offset, _) in taken.items()} | at  # others have had no record yet
    place = absolute(uri) if uri else None
    beside: dict[TopicPartition, OffsetMetadata | Position] = {
        tp: b for tp, (_, b) in taken.items()
    }
    beside |= places
    none = OffsetMetadata()
    offsets = {
        tp: (
            n,
            OffsetMetadata(
                times.get(tp, -1),
                _ahead(places.get(tp), n),
                spark=place,
                closed=beside.get(tp, none).closed,
                told=beside.get(tp, none).told,
            ).encode(),
        )
        for tp, n in at.items()
    }
    await admin.commit_offsets(cluster, group, offsets)
    return at


def _ahead(place: Position | None, offset: int) -> dict[str, int]:
    """Return the distance of each reader ahead of the committed offset of the partition."""
    readers = place.readers if place is not None else {}
    return {reader: at - offset for reader, at in readers.items() if at > offset}
