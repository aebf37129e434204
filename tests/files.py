"""How pytest-xdist shares the tests out: file by file, and no test that took its process with it again."""

from xdist.scheduler import LoadFileScheduling


class Files(LoadFileScheduling):
    """`--dist loadfile`, but for a test that ended its process: xdist gives it to the next one, which it ends too.

    With it xdist gives out files that are done, which are no work, and then waits for ever for their tests.
    """

    def remove_node(self, node):
        """Take back a dead process's files that are not done; return the test that it died of, which counts as run."""
        every = ((tests, name) for tests in self.assigned_work[node].values() for name in tests)
        left = ((tests, name) for tests, name in every if not tests[name])
        tests, crashed = next(left, ({}, None))
        if crashed is not None:
            tests[crashed] = True
        work = self.assigned_work[node]
        self.assigned_work[node] = {file: tests for file, tests in work.items() if not all(tests.values())}
        super().remove_node(node)
        return crashed


def pytest_xdist_make_scheduler(config, log):
    """Return our scheduler in place of xdist's own."""
    return Files(config, log) if config.getvalue("dist") == "loadfile" else None
