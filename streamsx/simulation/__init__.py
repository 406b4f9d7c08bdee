"""Simulation in virtual time: processes, threads and a network in one OS thread, by a seed."""
