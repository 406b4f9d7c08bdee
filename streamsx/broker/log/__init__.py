"""Partition logs of the embedded broker: segments, producer state, retention and compaction."""
