"""state/disk.py: errors of a disk, and the errors that RocksDB makes of them."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamsx.errors import DescriptorsUsedUp, DiskFailed, SettingError, StreamsxError
from streamsx.state import disk
from streamsx.state.directory import StateDirectory
from streamsx.state.rocks import refused


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (errno.ENOSPC, DiskFailed, 1),
        (errno.EDQUOT, DiskFailed, 1),
        (errno.EIO, DiskFailed, 1),
        (errno.EROFS, SettingError, 2),
        (errno.EACCES, SettingError, 2),
        (errno.ENOTDIR, SettingError, 2),
        (errno.ENOENT, SettingError, 2),
    ],
)
def test_folder_error_is_user_error_and_full_disk_world_error(
    code: int, kind: type[StreamsxError], exit_code: int
) -> None:
    line = rf": /data: {os.strerror(code)}: .*--state-dir"
    with pytest.raises(kind, match=line) as caught, disk.translate_errors("/data"):
        raise OSError(code, os.strerror(code))
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize("named", ["file", "file/in/it", "dangling"])
def test_unusable_state_directory_raises_setting_error(tmp_path: Path, named: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(SettingError, match=f"state directory cannot be used: {tmp_path / named}: "):
        StateDirectory(tmp_path / named, "shop")


def test_unusable_member_file_raises_setting_error(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop")
    (directory.path / "member.json").mkdir()
    says = r"member.json: Is a directory"
    with pytest.raises(SettingError, match=says):
        directory.remember_member("shop", "m-1", "h")
    with pytest.raises(SettingError, match=says):
        directory.predecessor("shop", "h")
    with pytest.raises(SettingError, match=says):
        directory.forget_member()
    directory.release()


def test_rocksdb_disk_error_becomes_one_line() -> None:
    text = "IO error: No space left on device: While appending to file: s/9.sst: {}"
    error = refused(Path("s"), Exception(text.format("No space left on device")))
    assert isinstance(error, DiskFailed)
    assert str(error).startswith("disk full or broken: s: No space left on device: make room")


def test_other_rocksdb_error_is_left_unchanged() -> None:
    error = Exception("Invalid argument: no such column family")
    assert refused(Path("s"), error) is error


WRITER = """
import resource, sys
from pathlib import Path
from streamsx.errors import DiskFailed
from streamsx.state.api import ROW
from streamsx.state.rocks import RocksMemory, RocksRows

memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)
rows = RocksRows(Path(sys.argv[1]), memory, "layout 1")
rows.write({ROW + b"first": b"1"}, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    for n in range(2, 1000):
        rows.write({ROW + b"%d" % n: bytes(1000)}, n)
except DiskFailed as error:
    print("write", n, error)
try:
    rows.close()
except DiskFailed as error:
    print("close", n, error)
again = RocksRows(Path(sys.argv[1]), memory, "layout 1")
print("again", again.position(), again.get(ROW + b"first"))
"""


def test_store_on_full_disk_raises_and_reopens_later(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path / "store")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert f"disk full or broken: {tmp_path / 'store'}: File too large: " in told["write"], done
    refused_at, kept = int(told["write"].split()[0]), int(told["again"].split()[0])
    assert 1 < kept < refused_at, done
    assert told["again"].endswith("b'1'")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_file_open_without_descriptors_names_limit(code: int) -> None:
    why = os.strerror(code)
    says = rf"too few file descriptors: .*: {why}: the limit of this process is \d+"
    with pytest.raises(DescriptorsUsedUp, match=says), disk.translate_errors("/data"):
        raise OSError(code, why)
    text = f"IO error: While open a file for random read: s/000012.sst: {why}"
    error = refused(Path("s"), Exception(text), 199)
    assert isinstance(error, DescriptorsUsedUp)
    assert "199 stores are open: raise the hard limit (ulimit -Hn" in str(error)


OPEN_TOO_MANY = """
import resource, sys
from pathlib import Path
from streamsx.errors import DescriptorsUsedUp
from streamsx.state.disk import raise_descriptor_limit
from streamsx.state.rocks import RocksMemory, RocksRows

folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 64))
assert raise_descriptor_limit() == 64
memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)
stores, spare = [], [open("/dev/null") for _ in range(8)]
try:
    while len(stores) < 64:
        stores.append(RocksRows(folder / str(len(stores)), memory, "layout"))
except DescriptorsUsedUp as error:
    print(len(stores), str(error))
for file in spare:
    file.close()  # to flush a store takes some
for store in stores:
    store.close()
assert not memory.opened
"""


def test_store_open_without_descriptors_is_not_a_full_disk(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", OPEN_TOO_MANY, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    opened, _, told = ended.stdout.strip().partition(" ")
    assert int(opened) > 2
    assert told.startswith(f"too few file descriptors: {tmp_path / opened}")
    assert f"the limit of this process is 64, {opened} stores are open: raise" in told
