"""Straight lines that train as one stack: each member is a line of its own."""

from dataclasses import replace

import torch

from retable.tasks import line
from retable.tasks.line.data import Points
from retable.tasks.line.learner import LineLearner


class Lines:
    """The members' points: each sees its own order."""

    def __init__(self, columns, source, configs):
        self.members = [Points(columns, source, [config]) for config in configs]
        self.steps, self.batch = self.members[0].steps, self.members[0].batch

    def batches(self, *place):
        yield from zip(*(member.batches(*place) for member in self.members), strict=True)


class LinesLearner:
    """Several lines. A member's jitter is drawn from its own seed: it must not depend on the others."""

    def __init__(self, configs, data, run):
        self.members = [LineLearner([config], data, run) for config in configs]

    def step(self, batch):
        losses = []
        for member, points in zip(self.members, batch, strict=True):
            torch.manual_seed(member.config.seed)
            losses.append(member.step(points)["loss"])
        return {"loss": torch.cat(losses)}

    def state_dict(self):
        return [state for member in self.members for state in member.state_dict()]

    def load_state_dict(self, states):
        for member, state in zip(self.members, states, strict=True):
            member.load_state_dict([state])


def validate(learner, data):
    return [{"slope": member.line.weight.item()} for member in learner.members]


TASK = replace(
    line.TASK,
    name="lines",
    about="straight lines, stacked",
    dataset=replace(line.TASK.dataset, open=Lines),
    learner=LinesLearner,
    validate=validate,
    group=lambda config: (config.batch, config.epochs, config.pause),
    tables=dict,
)
