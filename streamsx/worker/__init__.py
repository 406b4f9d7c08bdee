"""Worker process: wiring, data loop, timers, topics of the app, start and end.

Not here: the work of tasks (`tasks`), the decisions of the group (`group`, `assignor`).
"""
