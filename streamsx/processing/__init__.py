"""Processing of records: a task takes batches, changes its stores and hands out records.

Worker, test driver and Spark drive the same `Task`. Not here: where batches come from.
"""
