"""What a broker is told at its start, but for the limits of its connections and groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Of the broker. With `sync` nothing is acknowledged before it is on the disk."""

    sync: bool = False
    auto_create: bool = True
    partitions: int = 1
    """Of a topic for which nobody said how many."""
    cleaner_interval_s: float = 30.0
    compacted_bytes_min: int = 1 << 20
    """A log of which less has come since the last compaction is left alone."""
