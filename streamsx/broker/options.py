"""Options that a broker is started with, except the limits of its connections and groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a broker; with `sync` data is on the disk before a request is acknowledged."""

    sync: bool = False
    auto_create: bool = True
    partitions: int = 1
    """Number of partitions of a topic that is created without a number."""
    cleaner_interval_s: float = 30.0
    compacted_bytes_min: int = 1 << 20
    """Logs that grew by fewer bytes since the last compaction are not compacted."""
