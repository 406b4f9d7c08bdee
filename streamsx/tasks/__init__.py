"""Tasks of a worker: created, restored, run, committed, suspended, closed.

A pure machine stands beside each shell that performs the effects: `state_machine` and
`task_registry` beside `task_driver`, `commit_cycle` beside `committer`, `store_restore` beside
`restorer`. Not here: the processing of records (`processing`), the group (`group`).
"""
