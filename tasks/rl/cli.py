"""`retable rl ...` and the task's part of `retable data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retable.platform.board import console, show_defects
from retable.platform.errors import UserError
from retable.platform.storage import Storage

app = typer.Typer(no_args_is_help=True, help="Offline RL: play a trained policy, look at a network's shape.")

Where = Annotated[str, typer.Option("--storage", envvar="RETABLE_STORAGE", help="Where data and runs lie.")]
Environment = Annotated[str, typer.Option("--env", help="A Gymnasium environment without its version, e.g. hopper.")]


def environment_name(name: str) -> str:
    """Return an environment's proper name whatever the case it is written in: hopper -> Hopper."""
    import gymnasium

    known = {str(spec.name).lower(): str(spec.name) for spec in gymnasium.registry.values()}
    return known.get(name.lower(), name)


def make(
    env: Environment,
    storage: Where = "results",
    transitions: Annotated[int, typer.Option(help="Transitions to record.", min=1)] = 100_000,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise on actions in [-1, 1].", min=0)] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of environments and noise.", min=0)] = 0,
    policy: Annotated[str, typer.Option(help="expert: the committed policy; random: any environment.")] = "expert",
) -> None:
    """Record data with a committed expert policy, in D4RL's layout.

    Example: `retable data make rl --env hopper`
    """
    from retable.tasks.rl.prepare import make_recording

    if policy not in ("expert", "random"):
        raise UserError(f"--policy {policy}: use expert or random")
    info = make_recording(environment_name(env), Storage.open(storage), transitions, noise, seed, policy)
    score = "" if info["behaviour_score"] is None else f" = {info['behaviour_score']:.1f} normalised"
    console.print(
        f"{info['transitions']:,} transitions, {info['complete_episodes']} complete episodes, "
        f"return {info['behaviour_return']:.0f}{score}"
    )


def check(
    path: Annotated[str | None, typer.Argument(help="A .hdf5 file; none: every rl data set of the storage.")] = None,
    storage: Where = "results",
) -> None:
    """Say every defect of a D4RL file or of the storage's data sets, one line each.

    Example: `retable data check rl hopper_expert-v2.hdf5`
    """
    from retable.tasks.rl import data

    root = Storage.open(storage)
    places = [f"data/rl/{env}/{name}" for env in root.list("data/rl") for name in root.list(f"data/rl/{env}")]
    if path is None and not places:
        raise UserError(f"{root}/data/rl: no data sets; `retable data make rl --env hopper` records one")
    targets = [Path(path)] if path else [root / place for place in places]
    show_defects((target, data.check(target)) for target in targets)


def convert(
    source: Annotated[Path, typer.Argument(help="A D4RL .hdf5 file, e.g. hopper_expert-v2.hdf5.")],
    storage: Where = "results",
    env: Annotated[str | None, typer.Option(help="Environment, where the file's name does not say it.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the data set; default: from the file's name.")] = None,
) -> None:
    """Read a D4RL file into the Parquet form that training loads.

    Example: `retable data convert rl hopper_expert-v2.hdf5`, then `retable reproduce rl/figure1 --scale paper`
    """
    from retable.tasks.rl import data

    info = data.convert(source, Storage.open(storage), environment_name(env) if env else None, name)
    console.print(f"{info['environment']}/{info['name']}: {info['transitions']:,} transitions, source {info['source']}")


DATA = {"make": make, "check": check, "convert": convert}


@app.command()
def play(
    run: Annotated[str, typer.Argument(help="A run's fingerprint, or its first digits.")],
    storage: Where = "results",
    policy: Annotated[str, typer.Option(help="bcq or bc.")] = "bcq",
    episodes: Annotated[int, typer.Option(min=1)] = 10,
    epoch: Annotated[int, typer.Option(help="A kept epoch; 0: the last.", min=0)] = 0,
) -> None:
    """Play a trained policy in its simulator and print its scores."""
    from retable.platform import api
    from retable.platform.config import override
    from retable.platform.table import resolve
    from retable.platform.task import Source

    loaded = api.load(run, storage)
    task = loaded.task
    view = resolve(override(task.view(), {"policy": policy, "episodes": episodes, "epoch": epoch}), loaded.config)
    source = Source.of(loaded.folder.storage, task.dataset.where(loaded.config))
    played = task.predict(loaded.config, view, loaded.weights(view.epoch), source, "all")
    console.print(task.dataset.describe(source.info))
    for name, value in task.evaluate(loaded.config, view, {"all": played}, source).items():
        console.print(f"  {name}  {value:.6g}")
