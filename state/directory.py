"""State directory of one worker: lock, ids, stores and trash.

    {state_dir}/{app}/LOCK             held with flock for as long as the process lives; its pid
                      process.json     ids that survive a restart
                      member.json      the member id that this process uses in the group
                      sources.json     topics that the app reads: ids when seen last, and number
                                       of partitions of each when seen first
                      stores/{store}/{partition}/
                      stores/{store}/changelog.json   id of the topic behind the stores
                      kept/            stores that their changelog does not fit any more
                      trash/           renamed before deletion; stores that are being built

The holder of LOCK knows that the writer of member.json is dead, and may end the membership of that
member.

Out of scope: the content of a store (`rocks`), the choice of stores.
"""

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from streamsx.errors import SettingError, StoreLocked
from streamsx.state.disk import translate_errors

SLOTS_MAX = 256
FORMAT_VERSION = 1
PROCESS_FILE = "process.json"
CHANGELOG_FILE = "changelog.json"
SOURCES_FILE = "sources.json"
KEPT_DIGITS = 8


class StateDirectory:
    """State directory, locked from construction to `release`.

    Raises:
        StoreLocked: another process holds the lock; the message has its pid.
        SettingError: the folder cannot be used; later writes raise this too.
        DiskFailed: the disk is full or broken; later writes raise this too.
    """

    def __init__(
        self, state_dir: Path, app: str, fresh_id: Callable[[], uuid.UUID] = uuid.uuid4
    ) -> None:
        self.root = state_dir
        self.path = state_dir / app
        self._fresh_id = fresh_id
        with translate_errors(state_dir):
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path / "LOCK")
        known = _read(self.path / PROCESS_FILE)
        process_id = known.get("process_id")
        self.process_id = uuid.UUID(process_id) if process_id else fresh_id()
        self.instance_id: str | None = known.get("instance_id")
        self.fresh = not process_id
        self.own_slot_taken = ""
        """Reason why this slot does not bear the instance's id, if another slot does."""

    @classmethod
    def in_slot(cls, base: Path, app: str, instance_id: str | None = None) -> "StateDirectory":
        """Return the state directory in a slot 0, 1, ... of a folder that several workers share.

        The slot that bears the instance's id is preferred, else the first free one. Example: k, l
        and m have slots 0 to 2; l leaves; m is killed and comes back. In slot 1 worker m would have
        to restore all the state that lies in slot 2 (44 s in place of 3).

        Raises:
            StoreLocked: no slot is free.
        """
        taken = ""
        for path in _bearing(base, app, instance_id):
            try:
                return cls(path, app)
            except StoreLocked as error:
                taken = str(error)
        for slot in range(SLOTS_MAX):
            try:
                found = cls(base / str(slot), app)
            except StoreLocked:
                continue
            found.own_slot_taken = taken
            return found
        raise StoreLocked(f"no free slot: {base}: {SLOTS_MAX} workers hold it: give --state-dir")

    def name_instance(self, instance_id: str) -> None:
        """Keep the instance id for the next start."""
        self.instance_id = instance_id
        process_id = str(self.process_id)
        _write(self.path / PROCESS_FILE, process_id=process_id, instance_id=instance_id)

    # -- the member of the group

    def remember_member(self, group: str, member_id: str, host: str) -> None:
        """Write the member id; call before anything is sent with that id."""
        _write(self.path / "member.json", group=group, member_id=member_id, host=host)

    def forget_member(self) -> None:
        path = self.path / "member.json"
        with translate_errors(path):
            path.unlink(missing_ok=True)

    def predecessor(self, group: str, host: str) -> str | None:
        """Return the member id of a dead process of this directory.

        Returns:
            None on another host: the directory was copied, and the writer may live.
        """
        known = _read(self.path / "member.json")
        same = known.get("group") == group and known.get("host") == host
        return str(known["member_id"]) if same else None

    # -- stores

    def store(self, name: str, partition: int) -> Path:
        return self.path / "stores" / name / str(partition)

    def stores(self) -> Iterator[tuple[str, int]]:
        """Yield name and partition of every store on the disk, in order."""
        for path in sorted(self.path.glob("stores/*/*")):
            if path.name.isdigit():
                yield path.parent.name, int(path.name)

    def stores_of(self, name: str) -> str:
        """Return the folder of all partitions of a table."""
        return str(self.path / "stores" / name)

    def changelog_id(self, name: str) -> bytes | None:
        """Return the id of the changelog topic of a table's stores; None if unknown."""
        known = _read(self.path / "stores" / name / CHANGELOG_FILE)
        return bytes.fromhex(known["id"]) if known else None

    def remember_changelog(self, name: str, topic: str, topic_id: bytes) -> None:
        path = self.path / "stores" / name / CHANGELOG_FILE
        _write(path, topic=topic, id=topic_id.hex())

    def source_ids(self) -> dict[str, str]:
        """Return the id of each source topic when a worker here saw it last, as hex digits."""
        return dict(_read(self.path / SOURCES_FILE).get("ids", {}))

    def source_counts(self) -> dict[str, int]:
        """Return the number of partitions of each source topic when a worker here saw it first."""
        return dict(_read(self.path / SOURCES_FILE).get("partitions", {}))

    def remember_sources(self, ids: Mapping[str, str], counts: Mapping[str, int]) -> None:
        """Keep ids and partition counts of source topics for the next start."""
        _write(self.path / SOURCES_FILE, ids=dict(ids), partitions=dict(counts))

    def kept(self, name: str, partition: int) -> str:
        """Return a new folder for a store that may be the last copy; streamsx never deletes it."""
        digits = self._fresh_id().hex[:KEPT_DIGITS]
        return str(self.path / "kept" / f"{name}-{partition}-{digits}")

    def aside(self) -> Path:
        """Return a new folder for files that are trash until they are complete and moved."""
        return self.path / "trash" / self._fresh_id().hex

    def discard(self, path: Path) -> Path:
        """Move a folder away at once; `empty_trash` deletes it."""
        aside = self.aside()
        with translate_errors(aside):
            aside.parent.mkdir(exist_ok=True)
            return path.rename(aside)

    def delete(self, discarded: Path) -> None:
        with translate_errors(discarded):
            shutil.rmtree(discarded)

    def empty_trash(self) -> None:
        shutil.rmtree(self.path / "trash", ignore_errors=True)

    def release(self) -> None:
        self._lock.close()


def _bearing(base: Path, app: str, instance_id: str | None) -> list[Path]:
    """Return the slots that bear an instance's id, the latest start first.

    Several slots may bear the id: a copy of a slot, and the slot of a second process of that name.
    """
    found = []
    for slot in map(str, range(SLOTS_MAX)) if instance_id is not None else ():
        path = base / slot / app / PROCESS_FILE
        with suppress(SettingError):  # another user's slot must not stop this worker
            if _read(path).get("instance_id") == instance_id:
                found.append((path.stat().st_mtime, base / slot))
    return [path for _, path in sorted(found, reverse=True)]


def _locked(path: Path) -> IO[str]:
    with translate_errors(path):
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise StoreLocked(
                f"state directory in use: {path.parent}: process {pid} holds it: "
                "stop it, or give another --state-dir"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
    return file


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, empty if the file is missing or was torn by a crash.

    An empty result is safe, because each file can be made anew.
    """
    try:
        with translate_errors(path):
            found = json.loads(path.read_text() if path.exists() else "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, **content: object) -> None:
    new = path.with_suffix(".new")
    with translate_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"format": FORMAT_VERSION, **content}))
        new.replace(path)
