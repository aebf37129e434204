"""Pairs of encoders that others trained, read without their code: the paper's authors' and LAION-CLAP's.

LAION-CLAP's are read by `clap_files.py`; here are the Lightning checkpoints, of the two layouts of OptimusPrimus'
repositories: `dcase2023_task6b` (this paper's) and `salsa` (the 2024 challenge's winner). Both hold
`audio_embedding_model.` (PaSST, or PANNs' CNN14), `sentence_embedding_model.` (BERT or RoBERTa, Hugging Face's names),
`project_audio.`, `project_sentence.` and `tau`; they differ in how deep the audio network is wrapped. A tokenizer is
not in them: it is read from a folder, the cache of Hugging Face, or the hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.store.run import sha256
from retable.platform.store.weights import check, read_bytes, read_tensors
from retable.tasks.audio.config import Cnn14, Config, Passt, Pretrained
from retable.tasks.audio.encoders.checkpoints import recognise, segment_of, told
from retable.tasks.audio.encoders.text import outline
from retable.tasks.audio.encoders.tokens import TEXT_STATE
from retable.tasks.audio.export import Exported
from retable.tasks.audio.tools.adopt import clap_files
from retable.tasks.audio.tools.adopt.clap import Clap

ANCHOR = "project_audio.0.weight"
"""The tensor by which a pair is known."""
KNOWN = (
    "known are the Lightning checkpoints of OptimusPrimus/dcase2023_task6b and OptimusPrimus/salsa, and "
    f"{clap_files.KNOWN}"
)
TEXTS = {
    (1024, 24, 50265): "roberta-large",
    (768, 12, 50265): "roberta-base",
    (768, 6, 50265): "distilroberta-base",
    (1024, 24, 30522): "bert-large-uncased",
    (768, 12, 30522): "bert-base-uncased",
    (128, 2, 30522): "prajjwal1/bert-tiny",
    (256, 4, 30522): "prajjwal1/bert-mini",
    (512, 4, 30522): "prajjwal1/bert-small",
    (512, 8, 30522): "prajjwal1/bert-medium",
}
"""Width, layers and words of the text encoders that the authors' code knows -> the name on the hub."""
UNUSED = ("audio_token", "posencode.", "timing_tau", "loss.")
"""Tensors that a `salsa` checkpoint has whether or not its model uses them; what does use them is refused."""


def read_foreign(
    file: Path, text: str = "", part: str = "", say: Callable[[str], None] = lambda line: None
) -> Exported | Clap:
    """Read a pair of encoders that others trained: a checkpoint, or LAION-CLAP in a folder of Hugging Face's layout.

    Args:
        file: the checkpoint, or the folder.
        text: see `read_pair`.
        part: see `read_pair`.
        say: see `read_pair`.

    Raises:
        UserError: where it is neither, has parts that are not here, or its tokenizer cannot be had.
    """
    if not file.exists():
        raise UserError(f"{file}: no such file or folder; {KNOWN}")
    return (
        clap_files.read_folder(file, text) if file.is_dir() else read_pair(read_bytes(file), str(file), text, part, say)
    )


def read_pair(
    data: bytes, name: str, text: str = "", part: str = "", say: Callable[[str], None] = lambda line: None
) -> Exported | Clap:
    """Read a checkpoint of a pair as what `retable audio export` writes: a config, and weights by our names.

    Of LAION-CLAP's, what `Clap` says.

    Args:
        data: the file's bytes; code in it is never run.
        name: what errors call it.
        text: the text encoder's folder or name on the hub, for its tokenizer; none: told by its size.
        part: the copy of the audio encoder that is wanted where there are two, such as `net_swa`; none: the first.
        say: takes a line that says which copy is taken, and how long segments are.

    Raises:
        UserError: where it is no such checkpoint, has parts that are not here, or its tokenizer cannot be had.
    """
    tensors = read_tensors(Path(name), data, KNOWN, ANCHOR, clap_files.ANCHOR)
    if clap_files.ANCHOR in tensors:
        return clap_files.read_laion(tensors, data, name, text)
    if not any(key.endswith(ANCHOR) for key in tensors):
        raise UserError(f"{name}: no pair of encoders; {KNOWN}")
    try:
        config, parts = split(tensors, part, lambda line: say(f"{name}: {line}"))
    except ValueError as error:
        raise UserError(f"{name}: {error}; {KNOWN}") from error
    assert isinstance(config.text, Pretrained)
    chosen = text or config.text.name
    encoder = outline(chosen, config.tokens)
    try:
        check(parts["text"], encoder.network.state_dict())
    except ValueError as error:
        raise UserError(f"{name}: its text encoder is not {chosen}: {error}; name the right one by --text") from error
    weights = {
        **{f"audio.network.{key}": value.float() for key, value in parts["audio"].items()},
        **{f"text.network.{key}": value.float() for key, value in parts["text"].items()},
        **{key: value.float() for key, value in parts["rest"].items()},
        TEXT_STATE: encoder.get_extra_state(),
    }
    about = {"task": "audio", "adopted": sha256(data)}
    return Exported(about, config, weights, name)


def split(
    tensors: Mapping[str, Tensor], part: str = "", say: Callable[[str], None] = lambda line: None
) -> tuple[Config, dict[str, dict[str, Tensor]]]:
    """Return the config that a pair's tensors tell, and the tensors of `audio`, `text` and of the `rest`.

    Names and shapes alone decide, so tensors without data do. A PaSST's positions tell how long segments are.

    Raises:
        ValueError: where a part is missing, or the model has one that is not here.
    """
    refuse(tensors)
    audio_part = below(tensors, "audio_embedding_model.")
    text = below(tensors, "sentence_embedding_model.")
    text = {key: value for key, value in text.items() if not key.endswith("position_ids") and "pooler." not in key}
    if "embeddings.word_embeddings.weight" not in text:
        raise ValueError("its sentence_embedding_model is neither BERT nor RoBERTa")
    audio_part = {key: value for key, value in told(audio_part, part, say).items() if not key.startswith("mel.")}
    weights, layout = recognise(audio_part)
    audio: Passt | Cnn14 | None = layout
    if weights.network == "cnn14":
        audio = Cnn14(filters=len(weights.tensors["conv_block1.conv1.weight"]))
    if audio is None:
        raise ValueError("its audio_embedding_model is neither PaSST nor CNN14")
    segment = segment_of(audio) if isinstance(audio, Passt) else 10.0
    say(f"segments of {segment:g} s")
    words, width = text["embeddings.word_embeddings.weight"].shape
    layers = len({match[1] for key in text if (match := re.match(r"encoder\.layer\.(\d+)\.", key))})
    rest = {
        "audio_projection.weight": tensors["project_audio.0.weight"],
        "audio_projection.bias": tensors["project_audio.0.bias"],
        "text_projection.weight": tensors["project_sentence.0.weight"],
        "text_projection.bias": tensors["project_sentence.0.bias"],
        "temperature": tensors["tau"].abs().reshape(()),
    }
    name = TEXTS.get((width, layers, words), f"a text encoder of {layers} layers, width {width} and {words} words")
    config = Config(
        audio=audio,
        text=Pretrained(name=name),
        projection=len(rest["audio_projection.weight"]),
        segment=segment,
        tokens=32,
    )
    return config, {"audio": dict(weights.tensors), "text": text, "rest": rest}


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a part, by their names in it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def refuse(tensors: Mapping[str, Any]) -> None:
    """See whether there are just the parts that are known.

    Raises:
        ValueError: where not, naming what is missing or is too much.
    """
    wanted = [f"project_{side}.0.{part}" for side in ("audio", "sentence") for part in ("weight", "bias")] + ["tau"]
    if missing := [name for name in wanted if name not in tensors]:
        raise ValueError(f"{missing[0]} is missing")
    prefixes = (*wanted, "audio_embedding_model.", "sentence_embedding_model.", *UNUSED)
    for name in sorted(tensors):
        if name.startswith("audio_sequence."):
            raise ValueError("a transformer over segments (audio_sequence) is not here; segments are averaged")
        if name.startswith(("project_audio.", "project_sentence.")) and name not in wanted:
            raise ValueError(f"{name}: projections of several layers (adopt_n_layers) are not here")
        if not name.startswith(prefixes):
            raise ValueError(f"{name} is not of this layout")
