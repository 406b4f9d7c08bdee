"""Records per CPU-second of a worker, beside another program: `python -m tests.support.throughput`.

For whoever changes the way of a record, from a checkout: no part of what is installed.
"""
