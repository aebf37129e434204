"""The command `retable`, and `python -m retable.platform.cli`.

Level 15 of 15: nothing imports it.

    `app`        plan, reproduce, train, score, sweep, report, serve, predict, ...; tasks mount their own commands
    `runs`       runs, show, tables, diff, gc
    `filled`     filled tables on the terminal: in full, or a line a paper
    `jobs`       status, submit
    `groups`     the commands that tasks bring, and what `list` shows of tasks
    `doctor`     checks of this machine
    `new`        a task of your own from `templates/`; `published`: the paper's table from CSV
"""
