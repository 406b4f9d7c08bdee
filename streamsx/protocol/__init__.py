"""Kafka's protocol: bytes to values and values to bytes. Pure.

Requests and responses, record batches, the partitioner, error codes, and the text beside each
committed offset. Not here: connections (`client`).
"""
