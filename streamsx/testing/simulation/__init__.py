"""Whole groups on virtual time: the product's own machines, everything around them simulated.

`world` is the door. Not here: real processes and real brokers (`streamsx.testing.workers`).
"""
