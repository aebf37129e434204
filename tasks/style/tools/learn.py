"""A painting of your own as a network, in minutes: the training of a network continues with the new painting."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from retable.platform import api
from retable.platform.console import print_lines
from retable.platform.errors import UserError
from retable.platform.spec.resources import Resources
from retable.platform.spec.task import data_folder
from retable.platform.store.lease import one_maker
from retable.platform.store.provenance import cores
from retable.platform.store.storage import Storage
from retable.platform.store.weights import keep
from retable.tasks.style.data import files_below
from retable.tasks.style.files import images
from retable.tasks.style.files.prepare import PHOTOGRAPHS, VIDEOS, import_folder, make_generated, read_paintings
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.transformer import pack
from retable.tasks.style.tools.pictures.stylise import find_network

SETTINGS: Mapping[str, object] = {
    "method.size": 160,
    "method.batch": 2,
    "method.style_size": 512,
    "method.shift": 16,
    "method.gradient_norm": 1.0,
    "method.tone_weight": 0.3,
    "method.spike_weight": 0.1,
    "method.saturation_weight": 0.1,
    "method.lattice_weight": 6000.0,
    "method.objective.content_layers": ["relu3_1"],
    "method.objective.content_weight": 0.15,
    "method.objective.style_weight": 1.0,
    "method.objective.variation_weight": 0.25,
}
"""Differences from a training of the scale `small`: losses of the zoo's networks, for two small crops a step."""
EPOCHS = 4
"""Each ends with a sample picture."""
TESTS = 2
"""Photographs of the folder that are not trained on: those samples."""


def learn(painting: Path, start: str, photographs: Path | None, steps: int, storage: Storage) -> api.TrainedRun:
    """Train a network after a painting, or go on with it, or return it at once if it is finished.

    Args:
        painting: a picture.
        start: the network that the training starts from, as `--style` names one; all of its weights change.
        photographs: a folder of pictures and videos to train on; none: generated landscapes.
        steps: batches of two crops, in all.
        storage: where the data set and the run are kept; both are found again by what they were made of.

    Raises:
        UserError: where a file cannot be read, there is no such network, or the network has another form than trainings
            have.
    """
    ((work, data),) = read_paintings([painting]).items()
    network = find_network(start, storage)
    shape = network.architecture
    if shape != TransformerNetwork(shape.filters, shape.upsampling, shape.output).architecture:
        raise UserError(f"--start {start}: this network has another form than trainings here have; take great_wave")
    files = _pictures(photographs, storage) if photographs else ""
    made_of = f"{work} {files} {sha256(data).hexdigest()}"
    name = f"learn-{sha256(made_of.encode()).hexdigest()[:12]}"
    dataset = data_folder(storage, "style", name)

    with one_maker(storage, f"style/{name}"):
        if photographs and not dataset.exists("dataset.json"):
            info = import_folder(photographs, dataset, name, TESTS, paintings=[painting], remedy="add pictures")
            print_lines(info["left_out"], "left out: ")
        elif not dataset.exists("dataset.json"):
            make_generated(dataset, name, PHOTOGRAPHS, 0, [painting])
    changes = {
        **SETTINGS,
        "data": name,
        "style": [painting.stem],
        "init": "weights",
        "init.sha256": keep(pack(network, {}), storage),
        "method.filters": shape.filters,
        "method.upsampling": shape.upsampling,
        "method.output": shape.output,
        "epochs": EPOCHS,
        "steps": -(-steps // EPOCHS),
    }
    return api.train("style", changes, scale="small", storage=str(storage), resources=Resources(cpus=cores()))


def _pictures(folder: Path, storage: Storage) -> str:
    """Return a folder's path, and name, size and time of each picture and video below it that is not the storage's."""
    states = []
    for path, size in files_below(Storage.open(folder)).items():
        file, is_taken = (folder / path).resolve(), Path(path).suffix.lower() in (*images.SUFFIXES, *VIDEOS)
        if is_taken and not file.is_relative_to(Path(storage.root).resolve()):
            states.append((path, size, file.stat().st_mtime_ns))
    return f"{folder.resolve()} {states}"
