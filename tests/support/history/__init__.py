"""Histories of concurrent clients of a broker that is killed: recorded, then judged."""
