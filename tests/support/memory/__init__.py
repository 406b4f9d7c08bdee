"""A worker's memory beside its `memory_budget`: rows written, restarted and read."""
