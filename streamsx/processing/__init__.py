"""Processing of records: a task takes batches, changes its stores and sends records.

The worker, the test driver and Spark drive the same `Task`. Not here: the origin of batches.
"""
