"""The straight line, whose first step raises an error with a cause and a secret."""

from dataclasses import replace

from retable.platform.spec.task import Scale
from retable.tasks import line
from retable.tasks.line.learner import LineLearner


class Failing(LineLearner):
    def step(self, batch):
        outer()


def outer():
    try:
        inner()
    except ZeroDivisionError as error:
        raise RuntimeError("cannot read s3://KEY:SECRET@bucket/x") from error


def inner():
    return 1 / 0


TASK = replace(
    line.TASK,
    name="failing",
    about="a straight line that fails",
    learner=Failing,
    tables=dict,
    scales=lambda: {"smoke": Scale(about="seconds"), "quick": Scale(about="seconds")},
)
