"""Programs that are measured beside each other; each takes its work from the environment.

BOOTSTRAP, TOPIC, GROUP, STATE_DIR: what to read, as whom, where to keep state.
"""
