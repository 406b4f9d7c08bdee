"""Consumer group of an app: one member's way through a rebalance, and a tool's view of the group.

`member` decides and `session` performs. Not here: the meaning of partitions for tasks (`tasks`).
"""
