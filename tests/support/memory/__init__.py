"""Memory of a worker compared with its `memory_budget`: rows written, restarted and read."""
