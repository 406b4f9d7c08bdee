"""Kafka client: connections, metadata, administration, fetcher and producer.

A pure machine stands beside each shell that waits: `fetch_state` beside `fetcher`,
`record_accumulator` beside `producer`. Not here: the consumer group (`group`), tasks (`tasks`).
"""
