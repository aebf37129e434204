"""The line search on functions of a few variables, where it has to take moves back."""

from itertools import pairwise

import pytest
import torch

from retable.tasks.style.apply import lbfgs
from retable.tasks.style.apply.lbfgs import BacktrackingLbfgs


class Problem:
    """A function, its variables, and the loss of each evaluation."""

    def __init__(self, function, start):
        self.function, self.seen = function, []
        self.pixels = torch.tensor(start, requires_grad=True)
        self.optimizer = BacktrackingLbfgs(self.pixels, 1.0, history=5)

    def closure(self):
        loss = self.function(self.pixels)
        self.pixels.grad = None
        loss.backward()
        self.seen.append(loss.item())
        return loss.detach()

    def run(self, steps):
        for _ in range(steps):
            self.optimizer.step(self.closure)
        return self

    @property
    def state(self):
        return self.optimizer.state[self.pixels]


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def walled(x):
    return (2 * x).sum() - 1e-3 * torch.log(x - 0.5).sum()  # no number below 0.5; least at 0.5005


def test_it_finds_the_minimum_of_a_bent_valley_with_one_evaluation_a_step(monkeypatch):
    monkeypatch.setattr(lbfgs, "WINDOW", 1)
    problem = Problem(rosenbrock, [-1.2, 1.0]).run(400)
    assert len(problem.seen) == 400 and problem.seen[0] == pytest.approx(24.2)
    torch.testing.assert_close(problem.state["origin"], torch.ones(2), rtol=0, atol=1e-3)
    assert any(after > before for before, after in pairwise(problem.seen))


def test_no_move_is_longer_than_the_bound():
    problem = Problem(lambda x: 1e4 * (x**2).sum(), [1.0, -1.0, 0.5])
    for _ in range(20):
        problem.run(1)
        assert (problem.pixels - problem.state["origin"]).abs().mean() <= lbfgs.LONGEST * 1.0001


def test_where_the_loss_is_no_number_a_move_is_taken_back():
    problem = Problem(walled, [0.9, 0.7]).run(150)
    assert any(loss != loss for loss in problem.seen)
    torch.testing.assert_close(problem.state["origin"], torch.full((2,), 0.5005), rtol=0, atol=1e-4)


class Uphill(torch.autograd.Function):
    """The sum of squares with the gradient of its negative."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return (x**2).sum()

    @staticmethod
    def backward(context, gradient):
        return -2 * context.saved_tensors[0] * gradient


def test_a_direction_that_leads_nowhere_is_given_up(monkeypatch):
    monkeypatch.setattr(lbfgs, "WINDOW", 1)
    problem = Problem(Uphill.apply, [0.5, -0.25]).run(1)
    assert problem.seen == [0.3125]
    problem.run(lbfgs.HALVINGS)
    assert problem.seen[1:] == sorted(problem.seen[1:], reverse=True) and problem.seen[-1] > 0.3125
    assert problem.state["rejected"] == lbfgs.HALVINGS and "d" in problem.state
    problem.run(1)  # the last trial: back to where it was, without what was known of the curvature
    assert problem.pixels.tolist() == [0.5, -0.25] and "d" not in problem.state
    problem.run(1)
    assert problem.seen[-1] == 0.3125 and problem.state["n_iter"] == 1


def test_at_a_minimum_it_stays():
    problem = Problem(lambda x: (x**2).sum(), [0.0, 0.0]).run(5)
    assert problem.seen == [0.0] * 5 and problem.pixels.tolist() == [0.0, 0.0]
