"""Opens models by what users call them: a file, one of the zoo, or a run."""

from __future__ import annotations

from collections.abc import Callable

from retable.platform import api
from retable.platform.errors import UserError
from retable.platform.models import export as exported
from retable.platform.models import zoo
from retable.platform.store.storage import Storage
from retable.platform.store.weights import metadata, read_bytes
from retable.tasks.audio.export import Exported, read_export
from retable.tasks.audio.tools.adopt.pairs import read_pair
from retable.tasks.audio.tools.embed.embedder import Embedder


def open_embedder(
    name: str,
    storage: Storage,
    device: str = "",
    words_alone: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Embedder:
    """Open an exported file, a model of the zoo, or a run, as `api.load` takes it, with its last weights.

    Args:
        name: which one.
        storage: where runs lie.
        device: cpu, cuda, ...; none: a GPU where there is one.
        words_alone: leave out what embeds sounds, which takes seconds to build.
        say: takes a line on how a checkpoint of others is read; see `read_pair`.

    Raises:
        UserError: where there is none, the file is another's, or there is no such device.
    """
    file = zoo.find_file("audio", name)
    if file is not None:
        data, path = read_bytes(file), str(file.absolute())
        theirs = file.suffix != ".safetensors" and metadata(data) is None
        model = read_pair(data, path, say=say) if theirs else read_export(data, path)
        return model.embedder(device, words_alone)
    if not api.is_run_name(name, "audio"):
        raise UserError(f"model {name}: no such file, no run, and none of the zoo's: {', '.join(zoo.zoo('audio'))}")
    run = api.load(name, storage, task="audio")
    about = {"scale": exported.scale_of(run)}
    return Exported(about, run.config, run.weights(), run.fingerprint).embedder(device, words_alone)


def check_scale(embedder: Embedder, anyway: bool) -> None:
    """Refuse a model of the smoke scale, to which all words are alike, unless it is wanted anyway.

    Raises:
        UserError: saying so.
    """
    if embedder.scale == "smoke" and not anyway:
        why = "is of the smoke scale: it has not learnt to tell sounds apart"
        raise UserError(f"{embedder.source} {why}; use a run of --scale small or more, or add --anyway")
