"""Records per CPU-second of a worker compared with another program: `python -m
tests.support.throughput`.

It serves changes of the code that each record runs through, from a checkout; it is not installed.
"""
