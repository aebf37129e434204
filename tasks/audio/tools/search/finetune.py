"""Fine-tune on one's own recordings: the settings that follow from what the training starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from retable.platform import api
from retable.platform.config import Weights, override
from retable.platform.errors import UserError
from retable.platform.execute.run import execute
from retable.platform.models import zoo
from retable.platform.plan.plan import compile_configs
from retable.platform.spec.resources import Resources
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder, weights_path
from retable.platform.store.storage import Storage
from retable.platform.store.weights import keep, read_bytes
from retable.tasks.audio.config import SPLITS, Config, MeanMel, trained_on
from retable.tasks.audio.export import Exported, read_export, without_anchors

EPOCHS = 5
"""Of fine-tuning, in the paper."""
SLOWER = 8e-6 / 2e-5
"""Fine-tuning's learning rate over that of the training before it, in the paper."""


def settings(start: str, info: Mapping[str, Any], storage: Storage, changes: Mapping[str, object]) -> Config:
    """Return the config that trains on a data set of one's own.

    From a trained model: the paper's fine-tuning, 5 epochs at 0.4 times the learning rate, without what hides parts of
    the spectrogram; from none: the defaults. Batches are no larger than the set, captions are replaced only where there
    are rewritten ones, and where there is a validation set that is not trained on, the weights of the epoch that is
    best on it are kept. What the model was trained on of the same data set is trained on again.

    Args:
        start: a run, a file of `retable audio export`, a model of the zoo, or "none".
        info: the data set's `dataset.json`.
        storage: where runs lie; a file's weights are put there.
        changes: fields that are to be otherwise.

    Raises:
        UserError: where there is no such model, the set has no training captions, or a change fits no field, not the
            model's weights, or trains on fewer splits of the same data than they were trained on.
    """
    captions = int(info["captions"].get("training", 0))
    if not captions:
        raise UserError(f"{info['name']}: no training captions; add rows to the CSV")
    base = Config() if start == "none" else _continued(start, storage)
    if start != "none":
        rates = {"learning_rate": SLOWER * base.learning_rate}
        base = override(base, {"epochs": EPOCHS, **rates, "frequency_mask": 0, "time_mask": 0, "shift_bands": False})
    batch = min(base.batch, captions)
    own: dict[str, object] = {
        "data": info["name"],
        "corpora": ["clotho"],
        "batch": batch,
        "steps": 0,
        "leaks": "exclude",
        "augmentation": base.augmentation if info["rewrites"] else 0.0,
        "train_on": base.train_on if base.data == info["name"] else "training",
    }
    own["chunk"] = base.chunk if base.chunk < batch else 0
    chosen = override(base, {**own, **changes, "patience": 0})
    _check_text(start, base, chosen)
    if base.data == chosen.data and len(SPLITS[chosen.train_on]) < len(SPLITS[base.train_on]):
        more = f"the weights of {start} were trained on more of {base.data} (train_on={base.train_on}); leave it out"
        raise UserError(f"--set train_on={chosen.train_on}: {more}")
    waits = info["captions"].get("validation") and "validation" not in SPLITS[trained_on(chosen)]
    return override(chosen, {"patience": changes.get("patience", chosen.epochs if waits else 0)})


def _check_text(start: str, base: Config, chosen: Config) -> None:
    """Refuse another text encoder than the weights hold, by whose name the run would be called wrongly."""
    held, wanted = (getattr(config.text, "name", "untrained") for config in (base, chosen))
    if start != "none" and held != wanted:
        raise UserError(f"--set text: the weights of {start} hold their text encoder, {held}; leave it out")


def _continued(start: str, storage: Storage) -> Config:
    """Return a trained model's config, starting from its weights.

    They are taken by their digest: as its parent a run would be trained again where its data have changed. A file's
    anchors are left out: fine-tuning moves the vectors that they were fitted to.

    Raises:
        UserError: where there is no such model, or a run is not finished.
    """
    file = zoo.find_file("audio", start)
    if file is not None:
        data = read_bytes(file)
        exported = read_export(data, start)
        if not isinstance(exported, Exported):
            raise UserError(f"{start}: LAION-CLAP is searched with, not trained; name a run, or a file of one")
        config, data = replace(exported.config, data=str(exported.about.get("data", ""))), without_anchors(data)
    elif not api.is_run_name(start, "audio"):
        raise UserError(f"--from {start}: no such file, no run, and none of the zoo's: {', '.join(zoo.zoo('audio'))}")
    else:
        run = api.load(start, storage, task="audio")
        run.weights()  # complains where they are missing or damaged
        config, data = run.config, run.folder.folder.read(weights_path(run.config.epochs))
    digest = keep(data, storage)
    audio = config.audio if isinstance(config.audio, MeanMel) else replace(config.audio, weights="random")
    weights, train_on = Weights(sha256=digest), trained_on(config)
    return replace(config, audio=audio, init=weights, train_on=train_on)  # they are all of it: no others are looked for


def train(config: Config, storage: Storage, resources: Resources) -> api.TrainedRun:
    """Train a config as it is, or go on with it: no scale changes it, or the run that it starts from.

    Raises:
        UserError: if the run fails.
    """
    task = find("audio")
    work = compile_configs(task, [config], storage)
    if failures := execute(work, resources):
        raise UserError(next(iter(failures.values())))
    return api.TrainedRun(task, RunFolder.of(storage, task, config), config)
