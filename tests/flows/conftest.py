"""Fixtures of flow tests: rows in memory, or in RocksDB under a cache that holds nearly none."""

from itertools import count
from pathlib import Path

import pytest

from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.testing import driver

MEMORY = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)
SMALL_CACHE_BYTES = 2048


@pytest.fixture(params=["memory", "rocksdb"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Choose the rows below the stores of each TestDriver."""
    if request.param == "rocksdb":
        numbers = count()
        monkeypatch.setattr(
            driver, "MemoryRows", lambda: RocksRows(tmp_path / str(next(numbers)), MEMORY, "layout")
        )
        monkeypatch.setattr(driver, "CACHE_BYTES", SMALL_CACHE_BYTES)
