"""Modules that each Python worker of Spark needs, imported by the daemon that forks them.

Python runs this file at its start, where its folder is on PYTHONPATH. Without it each worker, and
each look at a data source, imports pandas, PyArrow and streamsx anew: 1.2 CPU-s.
"""

import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    for name in ("pandas", "pyarrow.parquet", "streamsx.spark.source", "streamsx.spark.task"):
        import_module(name)
