"""Kafka client: connections, metadata, administration, fetcher and producer.

Each module that waits for the network has a pure state machine beside it: `fetch_state` beside
`fetcher`, `record_accumulator` beside `producer`. Not here: the consumer group (`group`), tasks
(`tasks`).
"""
