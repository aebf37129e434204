"""The straight line, which fails where it is told to."""

from dataclasses import dataclass, replace
from typing import Literal

from retable.platform.errors import UserError
from retable.platform.task import Scale
from retable.tasks import line
from retable.tasks.line.config import Config as LineConfig
from retable.tasks.line.learner import LineLearner


@dataclass(frozen=True, kw_only=True)
class Config(LineConfig):
    """A line's fit that fails."""

    fails: Literal["step", "mistake", "predict"] = "step"


class Failing(LineLearner):
    def step(self, batch):
        if self.config.fails == "mistake":
            raise UserError("this cannot be trained; choose another")
        if self.config.fails == "step":
            outer()
        return super().step(batch)


def outer():
    try:
        inner()
    except ZeroDivisionError as error:
        raise RuntimeError("cannot read s3://KEY:SECRET@bucket/x") from error


def inner():
    return 1 / 0


def predict(config, view, weights, source, shard):
    if config.fails == "predict":
        outer()
    return line.predict(config, view, weights, source, shard)


TASK = replace(
    line.TASK,
    name="failing",
    about="a straight line that fails",
    config=Config,
    learner=Failing,
    predict=predict,
    tables=dict,
    scales=lambda: {"smoke": Scale(about="seconds")},
)
