"""A line and its training."""

import time

import numpy as np
import torch


class LineLearner:
    def __init__(self, configs, data, run):
        (self.config,) = configs
        torch.manual_seed(self.config.seed)
        self.line = torch.nn.Linear(1, 1)
        self.wrapped = run.wrap(self.line)
        self.optimizer = torch.optim.Adam(self.line.parameters(), self.config.rate)

    def step(self, batch):
        time.sleep(self.config.pause)
        x, y = batch
        jitter = 1e-3 * torch.randn(1)  # from the generator that the loop seeds
        loss = (self.wrapped(x[:, None])[:, 0] - y).square().mean() * (1 + jitter[0])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()[None]}

    def state_dict(self):
        return [{"weights": self.line.state_dict(), "optimizer": self.optimizer.state_dict()}]

    def load_state_dict(self, states):
        self.line.load_state_dict(states[0]["weights"])
        self.optimizer.load_state_dict(states[0]["optimizer"])

    def load_weights(self, weights):
        self.line.load_state_dict(weights[0])


def validate(learner, data):
    return [{"slope": learner.line.weight.item()}]


def predict(config, view, weights, source, shard):
    x = np.linspace(-1, 1, 11)
    return {"y": x * weights["weight"].item() + weights["bias"].item()}


def evaluate(config, view, summaries, source):
    return {"rmse": float(np.sqrt(np.mean((summaries["all"]["y"] - (2 * np.linspace(-1, 1, 11) + 1)) ** 2)))}


def mean(shard, members):
    return {"y": np.mean([member.load()["y"] for member in members], axis=0)}
