"""Shared parts of tests: brokers and workers beside them, clients, a harness of the coordinator."""
