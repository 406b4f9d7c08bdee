"""Worker process: wiring, data loop, timers, topics of the app, start and end.

Not here: what tasks do (`tasks`), how the group decides (`group`, `assignor`).
"""
