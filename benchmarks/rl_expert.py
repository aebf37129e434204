"""Train the expert policies whose recordings stand in for D4RL: CrossQ from SBX (Stable-Baselines3 in JAX).

Run as `python -m benchmarks.rl_expert HalfCheetah --steps 500000` in a checkout, with the extra `experts` installed.
The same command goes on where it stopped. Every `--evaluate-every` steps the deterministic policy plays 10 episodes;
the best so far is written to `tasks/rl/recordings/policies/<environment>.safetensors` as a plain network of rectified
linear layers with a tanh output (batch normalisation folded into the next layer, exactly), beside a JSON file that says
where it is from.

Source: Bhatt et al. 2024, CrossQ. We use smaller networks than the paper's (its critics have 2048 units), for speed on
one core.
"""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import typer

from retable.platform.spec.arrays import Array
from retable.tasks.rl.play.evaluate import rollout
from retable.tasks.rl.recordings.expert import POLICIES, Policy


def fold(parameters: dict[str, Any], statistics: dict[str, Any]) -> list[tuple[Array, Array]]:
    """Turn SBX's actor (batch norm, dense, relu, ..., mean) into layers `(weight (out, in), bias (out,))`."""
    dense = sorted((name for name in parameters if name.startswith("Dense")), key=lambda name: int(name.split("_")[1]))
    norms = sorted((name for name in statistics), key=lambda name: int(name.split("_")[1]))
    layers = []
    for position, name in enumerate(dense[: len(norms)]):  # mean layer included, log-std layer left out
        kernel, bias = np.asarray(parameters[name]["kernel"]), np.asarray(parameters[name]["bias"])
        norm, seen = parameters[norms[position]], statistics[norms[position]]
        scale = np.asarray(norm["scale"]) / np.sqrt(np.asarray(seen["var"]) + 1e-3)
        shift = np.asarray(norm["bias"]) - np.asarray(seen["mean"]) * scale
        layers.append(((kernel * scale[:, None]).T, bias + shift @ kernel))
    return layers


def main(
    environment: str,
    steps: int = 500_000,
    evaluate_every: int = 20_000,
    folder: Path = Path("expert-training"),
    width: int = 256,
    seed: int = 0,
) -> None:
    """Train an expert for ENVIRONMENT (HalfCheetah, Hopper, Walker2d, ...) and keep the best policy."""
    import sbx

    name, kept = f"{environment}-v5", POLICIES / f"{environment}.json"
    model_file, buffer_file = folder / f"{environment}-{seed}.zip", folder / f"{environment}-{seed}-buffer.pkl"
    if buffer_file.exists():
        model = sbx.CrossQ.load(model_file, env=gymnasium.make(name))
        model.load_replay_buffer(buffer_file)
    else:
        networks = {"net_arch": {"pi": [64, 64], "qf": [width, width]}}
        model = sbx.CrossQ("MlpPolicy", name, policy_kwargs=networks, seed=seed, learning_starts=5000)
    made = json.loads(kept.read_text()) if kept.exists() else {"return": -np.inf}
    best = made["return"] - made.get("return_std", 0.0)  # of the committed ones the first is the difference
    while model.num_timesteps < steps:
        start = time.time()
        model.learn(evaluate_every, reset_num_timesteps=False)
        state = model.policy.actor_state
        layers = fold(state.params, state.batch_stats)
        policy = Policy(layers)
        observation = model.observation_space.sample()[None].astype(np.float32)
        expected = model.predict(observation, deterministic=True)[0]
        np.testing.assert_allclose(policy(observation), expected, atol=1e-4)
        returns = rollout(policy, name, episodes=10, seed=1000)["returns"]
        rate = evaluate_every / (time.time() - start)
        score = f"return {returns.mean():.0f} +- {returns.std():.0f}"
        print(f"{name} {model.num_timesteps} steps: {score} ({rate:.0f} steps/s)", flush=True)
        if returns.mean() - returns.std() > best:
            best = float(returns.mean() - returns.std())
            versions = {
                package: importlib.metadata.version(package) for package in ("sbx-rl", "jax", "gymnasium", "mujoco")
            }
            policy.save(
                environment,
                {
                    "algorithm": "CrossQ (sbx-rl)",
                    "environment": name,
                    "steps": model.num_timesteps,
                    "seed": seed,
                    "networks": {"actor": [64, 64], "critic": [width, width]},
                    "return": float(returns.mean()),
                    "return_std": float(returns.std()),
                    "versions": versions,
                },
            )
        folder.mkdir(parents=True, exist_ok=True)
        model.save(model_file)
        model.save_replay_buffer(buffer_file)


if __name__ == "__main__":
    typer.run(main)
