"""Consumer group of an app: one member's way through a rebalance, and the tools' view of the group.

`member` decides, `session` performs. Not here: what the partitions mean to tasks (`tasks`).
"""
