"""Savings of a snapshot: ratios of CPU time in one run, the two alternating, medians of three.

A replay here has its records in memory: fetching them comes on top. Rows that lie scattered there,
as those of a dict do, cost their writer three times the CPU, in cache misses.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from streamsx.protocol.record_batch import Builder, columns
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.api import ROW
from streamsx.state.layout import StoreNode
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.state.snapshot import Part, SstFile, SstWriter, build, sst_name
from streamsx.state.snapshot_files import LinkFiles
from streamsx.tasks.store_restore import newest

RECORDS, KEYS, PER_BATCH = 400_000, 252_000, 5_000
WRITE_ROWS = 500
MEMORY = RocksMemory(blocks_bytes=64 << 20, buffers_bytes=64 << 20)

NODE = StoreNode("s", "log", table_key_codec(str), table_codec(str))


def taken(job: Callable[[], object]) -> float:
    began = time.process_time()
    job()
    return time.process_time() - began


@pytest.mark.perf
@pytest.mark.timeout(600)
def test_snapshot_store_is_ready_many_times_faster_than_replay(tmp_path: Path) -> None:
    batches = list[bytearray]()
    for start in range(0, RECORDS, PER_BATCH):
        builder = Builder(8 << 20)
        for n in range(start, start + PER_BATCH):
            builder.append(0, b'"user%08d"' % (n * 7919 % KEYS), b'{"count": %d, "sum": 1.5}' % n)
        batches.append(builder.close())
    rows: dict[bytes, bytes | None] = {}
    for raw in batches:
        batch = columns(memoryview(raw), 0)
        rows |= {ROW + k: v for k, v in zip(batch.keys, batch.values, strict=True) if k}
    copied = ((bytes(bytearray(k)), bytes(bytearray(v or b""))) for k, v in sorted(rows.items()))
    ordered = list(copied)  # as columns of Arrow and scans give them: one after the other in memory
    files = LinkFiles(tmp_path / "root", "file:root")

    def replay(number: int) -> None:
        store = RocksRows(tmp_path / f"replay{number}", MEMORY, "layout")
        for raw in batches:
            batch = columns(memoryview(raw), 0)
            writes = list(newest(NODE.local_keys(batch.keys), batch.values).items())
            for at in range(0, len(writes), WRITE_ROWS):
                store.write(dict(writes[at : at + WRITE_ROWS]), at)
        store.close()

    def write(number: int) -> Part:
        writer = SstWriter(local := tmp_path / f"local{number}")
        for key, value in ordered:
            writer.put(key, value)
        made = writer.finish()
        assert made is not None
        files.publish(local, name := sst_name("s", 0, number))
        return Part((SstFile(name, *made, full=True),), 1)

    told = list[tuple[float, float, float]]()
    for number in range(3):
        parts = list[Part]()
        replayed = taken(lambda number=number: replay(number))  # type: ignore[misc]
        written = taken(lambda n=number, parts=parts: parts.append(write(n)))  # type: ignore[misc]
        built = taken(
            lambda n=number, parts=parts: build(files, parts[0], 1, tmp_path / f"b{n}", "{}")  # type: ignore[misc]
        )
        told.append((replayed, written, built))
    ingest = median(r / b for r, _, b in told)
    both = median(r / (w + b) for r, w, b in told)
    print(f"ingest {ingest:.0f}x, write and ingest {both:.1f}x of a replay; {told}")  # noqa: T201
    assert ingest >= 50
    assert both >= 5
