"""`retable rl ...` and the task's part of `retable data`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from retable.platform.config import override, set_line
from retable.platform.console import (
    Epoch,
    Into,
    Licence,
    Limit,
    Mirror,
    Overwrite,
    Replace,
    Run,
    Where,
    Yes,
    console,
    items,
    print_lines,
    show_defects,
    whole,
)
from retable.platform.errors import UserError
from retable.platform.spec.task import Source, check_new, find, new_data
from retable.platform.store.storage import Storage
from retable.tasks.rl import DESCRIPTION
from retable.tasks.rl.formats.precisions import Precision
from retable.tasks.rl.metrics import D4RL
from retable.tasks.rl.play.evaluate import check_sizes

if TYPE_CHECKING:
    from torch import Tensor

    from retable.platform.store.download import Published

app = typer.Typer(
    no_args_is_help=True,
    help="Offline RL: play a trained policy, write it as a compact file.\n\nExample: `retable rl play latest`",
)

SUFFIX = DESCRIPTION.model_suffix
"""Suffix of a policy's file."""
Environment = Annotated[str, typer.Option("--env", help="A Gymnasium environment without its version, e.g. hopper.")]
Skip = Annotated[str, typer.Option(help="Leave out episodes: their numbers from 0 on, e.g. 3,17.")]
Mend = Annotated[
    Literal["ends"] | None,
    typer.Option(help="ends: mark ends of episodes that have no mark, drop reset rows and wrong successors."),
]


def environment_name(name: str) -> str:
    """Return an environment's name as Gymnasium spells it, from any case: hopper -> Hopper."""
    import gymnasium

    names = {str(spec.name).lower(): str(spec.name) for spec in gymnasium.registry.values()}
    return names.get(name.lower(), name)


def _tell(info: Mapping[str, Any]) -> None:
    """Print what was imported, and how it was read."""
    line = f"{info['environment']}/{info['name']}: {info['transitions']:,} transitions, source {info['source']}"
    console.print(line, markup=False)
    for word, lines in (("mended", info.get("mended", ())), ("remark", info.get("remarks", ()))):
        print_lines(lines, f"{word}: ")
    if skipped := info.get("skipped"):
        console.print(f"left out: episodes {', '.join(map(str, skipped))}")


def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets, e.g. hopper-expert-v2; without one they are listed.")
    ] = None,
    storage: Where = "results",
    folder: Into = None,
    yes: Yes = False,
    mirror: Mirror = "",
    limit: Limit = "",
    replace: Replace = False,
) -> None:
    """Download sets of D4RL and Minari, check them, and convert them for training; an interrupted download continues.

    Example: `retable data fetch rl halfcheetah-expert-v2 hopper-expert-v2 walker2d-expert-v2`
    """
    from retable.platform.store import download
    from retable.tasks.rl import data
    from retable.tasks.rl.recordings.prepare import published
    from retable.tasks.rl.tools.minari import import_minari

    root = Storage.open(storage)

    def place(wanted: Published) -> Path:
        return folder or download.default_folder(root, "rl")

    new = partial(_check_new, root, replace)
    fetched = download.fetch_by_name(published(), names or [], place, yes=yes, mirror=mirror, limit=limit, check=new)
    for wanted, files in fetched:
        if wanted.hub:
            _tell(import_minari(place(wanted) / wanted.hub.folders[0], root, replace=replace))
        else:
            _tell(data.convert(files[0], root, replace=replace))


def _check_new(root: Storage, replace: bool, wanted: Published) -> None:
    """Refuse a published set that the storage has, before it is downloaded.

    Raises:
        UserError: then, unless it is to be replaced.
    """
    from retable.tasks.rl import data

    for file in wanted.files:
        entry = D4RL["files"][file.checksum.removeprefix("sha256:")]
        check_new(data.folder(root, entry["environment"], entry["name"]), replace)
    for below in wanted.hub.folders if wanted.hub else ():
        for environment in root.folders("data/rl"):
            target = root / f"data/rl/{environment}/minari-{below.rpartition('/')[2]}"
            if target.exists("dataset.json"):
                known_set = target.read_json("dataset.json").get("minari") or {}
                if str(known_set.get("id", "")).endswith(below):
                    check_new(target, replace)


def make(
    env: Environment,
    storage: Where = "results",
    transitions: Annotated[int, typer.Option(help="Transitions to record.", min=1)] = 100_000,
    noise: Annotated[
        float | None, typer.Option(help="Standard deviation of the expert's noise, actions in [-1, 1]: .05.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of environments and noise.", min=0)] = 0,
    policy: Annotated[
        Literal["expert", "random"], typer.Option(help="expert: the committed policy; random: any environment.")
    ] = "expert",
    mix: Annotated[
        str, typer.Option(help="Mix equal shares of these behaviors: expert, noisy, imperfect, random.")
    ] = "",
    replace: Replace = False,
) -> None:
    """Record data with a committed expert policy, or with several behaviors, in D4RL's layout.

    Example: `retable data make rl --env hopper`, `retable data make rl --env hopper --mix expert,imperfect,random`
    """
    from retable.tasks.rl.recordings.prepare import make_recording

    parts = items("--mix", mix, str)
    if noise and (parts or policy == "random"):
        raise UserError(f"--noise {noise:g}: only the expert's actions have it; leave it out")
    if parts and policy != "expert":
        raise UserError(f"--policy {policy}: --mix names the behaviours; leave it out")
    root, environment = Storage.open(storage), environment_name(env)
    name = "mixed" if parts else "recorded"
    with new_data(root, "rl", environment, name, replace=replace):
        info = make_recording(environment, root, transitions, 0.05 if noise is None else noise, seed, policy, parts)
    for part in info["behaviour"].get("parts", ()):
        console.print(f"{part['name']}: {part['transitions']:,} transitions, return {part['return']:.0f}")
    score = "" if info["behaviour_score"] is None else f" = {info['behaviour_score']:.1f} normalised"
    console.print(
        f"{info['transitions']:,} transitions, {info['complete_episodes']} complete episodes, "
        f"return {info['behaviour_return']:.0f}{score}"
    )


def check(
    path: Annotated[
        str | None, typer.Argument(help="A .hdf5 file or a Minari folder (default: all rl data sets of the storage).")
    ] = None,
    storage: Where = "results",
    env: Annotated[str | None, typer.Option(help="Environment of a file that does not say it.")] = None,
    simulator: Annotated[str | None, typer.Option(help="Version of that environment, e.g. v4.")] = None,
) -> None:
    """Print every defect of a D4RL file or of the storage's data sets, the first of a Minari set, one line each.

    A remark may be harmless, such as an episode beyond the environment's limit. For an intact file, it prints which of
    D4RL's 51 files of HalfCheetah, Hopper and Walker2d it is.

    Example: `retable data check rl hopper_expert-v2.hdf5`
    """
    from retable.tasks.rl import data
    from retable.tasks.rl.recordings import d4rl
    from retable.tasks.rl.tools import minari

    root, given = Storage.open(storage), Path(path or "").expanduser()
    named, is_minari = environment_name(env) if env else None, (given / minari.METADATA).is_file()
    if (env or simulator) and (path is None or (given.is_dir() and not is_minari)):
        option = "--env" if env else "--simulator"
        raise UserError(f"{option}: only a .hdf5 file or a Minari folder takes it; leave it out")
    if path is not None:
        if is_minari:
            defects, remarks = minari.inspect(given, named, simulator)
        elif given.is_dir():
            defects, remarks = data.check(given), []
        else:
            defects, remarks = data.inspect(given, named, simulator)
        print_lines(remarks, f"{given}: remark: ")
        whose = "" if given.is_dir() or defects else f" ({d4rl.published_as(given)})"
        show_defects([(f"{given}{whose}", defects)])
        return
    folders = [f"data/rl/{env}/{name}" for env in root.folders("data/rl") for name in root.folders(f"data/rl/{env}")]
    if not folders:
        raise UserError(f"{root}/data/rl: no data sets; `retable data make rl --env hopper` records one")
    show_defects((root / below, data.check(root / below)) for below in folders)


def convert(
    source: Annotated[Path, typer.Argument(help="A D4RL .hdf5 file, e.g. hopper_expert-v2.hdf5.")],
    storage: Where = "results",
    env: Annotated[
        str | None, typer.Option(help="Environment of a file that is neither D4RL's (by SHA-256) nor our recording.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the data set, of a file that is not D4RL's.")] = None,
    simulator: Annotated[
        str | None, typer.Option(help="Version of the environment that a file of your own was recorded in (v5).")
    ] = None,
    skip: Skip = "",
    mend: Mend = None,
    replace: Replace = False,
) -> None:
    """Read a D4RL file into the Parquet form that training loads.

    Actions are read in the bounds of the environment. A file whose episodes end in wrong places is refused.

    Example: `retable data convert rl hopper_expert-v2.hdf5`, then `retable reproduce rl/figure1 --scale paper`
    """
    from retable.tasks.rl import data

    skipped = items("--skip", skip, whole, "number of an episode", "3,17")
    root, environment = Storage.open(storage), environment_name(env) if env else None
    info = data.convert(
        source.expanduser(), root, environment, name, simulator, skip=skipped, mending=mend is not None, replace=replace
    )
    _tell(info)


def import_(
    source: Annotated[Path, typer.Argument(help="A Minari data set's folder, e.g. .../mujoco/hopper/expert-v0.")],
    storage: Where = "results",
    env: Annotated[str | None, typer.Option(help="Environment, where the metadata do not say it.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the data set (default: minari- and its id).")] = None,
    simulator: Annotated[
        str | None, typer.Option(help="Version of that environment, where the metadata do not say it (v5).")
    ] = None,
    skip: Skip = "",
    mend: Mend = None,
    replace: Replace = False,
) -> None:
    """Read a Minari data set, as its package keeps it in HDF5, into the Parquet form that training loads.

    Policies are played in the environment that its `env_spec` names, with its limit and arguments.

    Example: `retable data import rl ~/.minari/datasets/mujoco/hopper/expert-v0`
    """
    from retable.tasks.rl.tools.minari import import_minari

    skipped = items("--skip", skip, whole, "number of an episode", "3,17")
    root, environment = Storage.open(storage), environment_name(env) if env else None
    info = import_minari(
        source.expanduser(), root, environment, name, simulator, skip=skipped, mending=mend is not None, replace=replace
    )
    _tell(info)
    changes = {"environment": info["environment"], "data": info["name"]}
    console.print(f"train on it: retable train rl {set_line(changes)}", markup=False)


DATA = {"fetch": fetch, "make": make, "check": check, "convert": convert, "import": import_}


@app.command()
def export(
    run: Run,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. policy.rtsn.")],
    storage: Where = "results",
    policy: Annotated[
        Literal["bcq", "bc", "all"] | None,
        typer.Option(help="Weights to write; all: those of training too (default: what the run plays)."),
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Of the weights; float32 is exact.")] = "float32",
    epoch: Epoch = 0,
    licence: Licence = "",
    overwrite: Overwrite = False,
) -> None:
    """Write a trained policy as one compact file that `play` reads.

    Example: `retable rl export 3f2a policy.rtsn --precision int8`
    """
    from retable.platform.models.export import export
    from retable.tasks.rl.formats.sizes import file_bytes

    loaded = export(
        "rl",
        run,
        storage,
        file,
        SUFFIX,
        overwrite=overwrite,
        epoch=epoch,
        policy=policy or "",
        precision=precision,
        licence=licence,
    )
    dense = file_bytes(loaded.weights(epoch))
    ratio = dense / file.expanduser().stat().st_size
    console.print(f"{ratio:.1f} times smaller than the dense file of all weights ({dense:,})")


@app.command()
def play(
    run: Annotated[
        str,
        typer.Argument(
            help=f"A run (its first digits, `latest`, or TABLE/ROW), a {SUFFIX} file, or a policy of the zoo."
        ),
    ],
    storage: Where = "results",
    policy: Annotated[
        Literal["bcq", "bc"] | None,
        typer.Option(help="Which acts (default: bcq where it was trained, or what a file was written for)."),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes to play.", min=1)] = 10,
    epoch: Epoch = 0,
    env: Annotated[str | None, typer.Option(help="Check that the policy is for this environment.")] = None,
) -> None:
    """Play a trained policy in its simulator and print its scores.

    Examples: `retable rl play HalfCheetah-snip-95` · `retable rl play latest --episodes 3`
    """
    from retable.platform import api
    from retable.platform.execute.scoring import score_weights
    from retable.platform.models import zoo
    from retable.tasks.rl import data
    from retable.tasks.rl.export import own_policy

    changes: dict[str, object] = {"episodes": episodes, "epoch": epoch}
    if (shipped := zoo.zoo("rl").get(run)) or run.endswith(SUFFIX):
        if epoch:
            raise UserError(f"{run}: a file holds one epoch's weights; leave out --epoch {epoch}")
        task = find("rl")
        config, weights, source, written_for = _policy_file(shipped or Path(run).expanduser(), env)
        if (policy, written_for) == ("bcq", "bc"):
            raise UserError(f"{run}: holds policy bc; leave --policy out")
        view: Any = override(task.view(), {**changes, "policy": policy or written_for})
        console.print(f"{run}: a policy for {data.simulator(config.environment, source.info)}", markup=False)
        try:
            scores = score_weights(task, config, view, weights, source)
        except UserError as error:
            raise UserError(f"{run}: {error}") from error
    else:
        loaded = api.load(run, storage, task="rl")
        if env and environment_name(env) != loaded.config.environment:
            raise UserError(f"--env {env}: run {run} is of {loaded.config.environment}; leave --env out")
        console.print(loaded.task.dataset.describe(loaded.source.info), markup=False)
        scores = loaded.score({**changes, "policy": policy or own_policy(loaded.config)})
    for name, value in scores.items():
        console.print(f"  {name}  {value:.6g}")


def _policy_file(file: Path, env: str | None) -> tuple[Any, Mapping[str, Tensor], Source, str]:
    """Read a policy's file: what `predict` asks for, and the policy it was written for."""
    from retable.tasks.rl import data
    from retable.tasks.rl.export import read_policy
    from retable.tasks.rl.formats.compact import HEAVIEST

    if not file.is_file():
        raise UserError(f"{file}: no such file; `retable rl export` writes one")
    if file.stat().st_size > HEAVIEST:
        size = f"{file.stat().st_size / 1e6:,.0f} MB"
        raise UserError(f"{file}: {size}; no policy takes more than {HEAVIEST / 1e6:.0f} MB: this is another file")
    config, info, weights, policy = read_policy(file.read_bytes(), str(file))
    if env is not None and environment_name(env) != config.environment:
        raise UserError(f"{file}: a policy for {config.environment}, not for {environment_name(env)}; leave out --env")
    check_sizes(data.simulator(config.environment, info), info["states"], info["actions"], "the policy")
    return config, weights, Source(Storage.open(file.absolute().parent), info), policy
