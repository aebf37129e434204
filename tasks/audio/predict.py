"""Predictions of a trained run: similarities of a split's captions and recordings, and their scores.

A shard is a block of captions against all recordings of the split, so predictions of any size are made, joined and
scored in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.platform.train.worker import best_device, device_of
from retable.tasks.audio import metrics
from retable.tasks.audio.collect.recordings import AudioShards, Recording, read_recordings
from retable.tasks.audio.config import SPLITS, Config, View, trained_on
from retable.tasks.audio.data import RATE, bounded, queries
from retable.tasks.audio.encoders.fingerprint import weights_fingerprint
from retable.tasks.audio.metrics import Summaries, per_query, per_recording
from retable.tasks.audio.model import DualEncoder, Encoders, load
from retable.tasks.audio.world.generate import relevant

BLOCK = 1024
"""Captions of a shard."""
TEXTS = 128
"""Captions that are embedded at once."""
SECONDS = 320
"""Of sound that is held at once, its padding included; more where a single recording is longer."""
EMBEDDED: dict[tuple[str, ...], Array] = {}
"""The last split's recordings as embedded by one model: the next shard of the same split needs them again."""
LOADED: list[tuple[Config, str, DualEncoder]] = []
"""The last model with its config and its weights' fingerprint, until the last shard of a split."""
FITTING: dict[tuple[str, ...], Array | None] = {}
"""Relevance of the last split's recordings to its captions: all models need it again."""


def check(config: Config, view: View) -> None:
    """Refuse to score a run on what it, or a run that it goes on from, was trained on.

    Raises:
        UserError: where it is so.
    """
    trained = trained_on(config)
    if view.split not in SPLITS[trained]:
        return
    remedy = "score split=test" if trained == "training_validation" else "nothing is left to score it on"
    raise UserError(f"split {view.split}: its recordings were trained on (train_on={trained}); {remedy}")


def shards(config: Config, view: View, source: Source) -> Sequence[str]:
    """Return the names `<split>/<number>` of a split's blocks of captions.

    Raises:
        UserError: where the split was trained on, or the data set has no captions of it.
    """
    check(config, view)
    captions = int(source.info["captions"].get(view.split, 0))
    if not captions:
        raise UserError(f"{source.folder}: no captions of the {view.split} split; choose another `split`")
    return [f"{view.split}/{number:05d}" for number in range(-(-captions // BLOCK))]


def split_recordings(source: Source, split: str) -> list[Recording]:
    """Return the recordings of a split in order: the columns of a similarity matrix."""
    return [recording for recording in read_recordings(source.folder) if recording.split == split]


def block(shard: str) -> slice:
    """Return which captions of the split a shard holds."""
    number = int(shard.rpartition("/")[2])
    return slice(number * BLOCK, (number + 1) * BLOCK)


def predict(config: Config, view: View, weights: Mapping[str, Tensor], source: Source, shard: str) -> dict[str, Array]:
    """Return `similarity`, the cosines of a block's captions and the split's recordings: float32 (queries, recordings).

    All of a recording is heard, in float32 arithmetic whatever a run was trained in; repeated shards of a split build
    the model and embed its recordings once.
    """
    recordings = split_recordings(source, view.split)
    fingerprint, model = loaded(config, weights)
    key = (fingerprint, *name_of(source, view.split))
    if key not in EMBEDDED:
        EMBEDDED.clear()
        EMBEDDED[key] = embed_audio(model, sounds(source, recordings), source.info["features"])
    captions = [caption for caption, _ in queries(recordings, view.split)[block(shard)]]
    similarity: Array = embed_text(model, captions) @ EMBEDDED[key].T
    if shard == shards(config, view, source)[-1]:
        LOADED.clear()  # a model takes gigabytes, of a GPU's memory too
    return {"similarity": similarity}


def loaded(config: Config, weights: Mapping[str, Tensor]) -> tuple[str, DualEncoder]:
    """Return a model's fingerprint and the model: the last one where config and weights are the same."""
    for last_config, fingerprint, model in LOADED:
        if config == last_config and has_weights(model, weights):
            return fingerprint, model
    LOADED.clear()  # before the next one takes memory
    LOADED.append((config, weights_fingerprint(config, weights), load(config, weights).to(best_device())))
    return LOADED[0][1:]


def has_weights(model: DualEncoder, weights: Mapping[str, Tensor]) -> bool:
    """Return whether a model has exactly these weights; comparing takes less time than hashing."""
    own = model.state_dict()
    return own.keys() == weights.keys() and all(
        value.dtype == weights[name].dtype and torch.equal(value, weights[name].to(value.device))
        for name, value in own.items()
    )


def name_of(source: Source, split: str) -> tuple[str, ...]:
    """Return what tells a split of a data set from any other."""
    return str(source.folder), source.info["digest"], source.info["features"], split


def sounds(source: Source, recordings: Iterable[Recording]) -> Iterator[Array]:
    """Yield what each recording is kept as: its waveform (samples,) or log-mel (frames, 128), float32."""
    kept = AudioShards(source.folder, source.info)
    read = kept.mel if source.info["features"] == "mel" else kept.waveform
    return (read(recording.recording) for recording in recordings)


@torch.inference_mode()
def embed_audio(model: Encoders, recordings: Iterable[Array], features: str = "waveform") -> Array:
    """Return the L2-normalised vectors of recordings, float32 (recordings, projection); a few are held at a time.

    Args:
        model: in evaluation mode.
        recordings: float32 each, (samples,) or, with features "mel", (frames, 128).
        features: "waveform" or "mel".
    """
    device, vectors = device_of(model.parameters()), []
    for some in bounded(recordings, len, SECONDS * RATE[features]):
        lengths = torch.tensor([len(sound) for sound in some])
        audio = pad_sequence([torch.tensor(sound) for sound in some], batch_first=True)
        vectors.append(model.embed_audio(audio.to(device), lengths.to(device), features).float().cpu().numpy())
    return np.concatenate(vectors)


@torch.inference_mode()
def embed_text(model: Encoders, captions: Sequence[str]) -> Array:
    """Return the L2-normalised vectors of captions, float32 (captions, projection)."""
    starts = range(0, len(captions), TEXTS)
    return np.concatenate([model.embed_text(captions[start : start + TEXTS]).float().cpu().numpy() for start in starts])


def summarise(
    config: Config, view: View, predictions: Mapping[str, Array], source: Source, shard: str
) -> dict[str, Array]:
    """Return what a block's scores are computed from.

    Returns:
        `recording` int64 (queries,), of each caption; `better` and `tied` int64 (queries,), see `metrics.ranks`;
        `by_rules` bool (1,), whether rules rewrote the data's captions, for claims on rewriting. For audio to text:
        `item_recording` int64 (recordings,), `item_captions` int64 (recordings,), how many of the block's captions are
        a recording's own, and its best-placed captions as `a2t_value`, `a2t_count` and `a2t_relevant` (recordings,
        10), see `metrics.Ties`. Where it is known which recordings fit a caption: `map10_multi` and `map16_multi`,
        float64 (queries,).
    """
    similarity, recordings = predictions["similarity"], split_recordings(source, view.split)
    items = np.array([recording.recording for recording in recordings])
    own = np.array([number for _, number in queries(recordings, view.split)[block(shard)]])
    better, tied = metrics.ranks(similarity, metrics.columns_of(own, items))
    match = own[None, :] == items[:, None]
    ties = metrics.tie_groups(similarity.T, match, metrics.DEPTH)
    summary = {
        "recording": own,
        "better": better,
        "tied": tied,
        "item_recording": items,
        "item_captions": match.sum(axis=1),
        "a2t_value": ties.value,
        "a2t_count": ties.count,
        "a2t_relevant": ties.relevant,
        "by_rules": np.array([str(source.info.get("rewrites", "")).startswith("rules")]),
    }
    relevance = fitting(source, view.split)
    return summary if relevance is None else summary | metrics.multi_text_to_audio(similarity, relevance[block(shard)])


def fitting(source: Source, split: str) -> Array | None:
    """Return which recordings each caption of a split fits, bool (captions, recordings); None where nobody knows."""
    key = name_of(source, split)
    if key not in FITTING:
        FITTING.clear()
        FITTING[key] = relevant(source, split)
    return FITTING[key]


def evaluate(config: Config, view: View, summaries: Summaries, source: Source) -> dict[str, float]:
    """Return the scores of a view, in [0, 1].

    Returns:
        `map10`, `r1`, `r5`, `r10` of finding recordings by captions; `a2t_map10`, `a2t_r1`, `a2t_r5`, `a2t_r10` of
        finding captions by recordings; of generated data `map10_multi` and `map16_multi`, where every recording
        counts that a caption fits.
    """
    scores = per_query(summaries) | per_recording(summaries)
    del scores["recording"]
    return metrics.means({name: values for name, values in scores.items() if np.isfinite(values).any()})


def view_cost(config: Config, view: View) -> float:
    """Return seconds of one CPU core that a view's predictions take, roughly: a third of training on as many clips.

    A test set has about a fifteenth as many recordings as Clotho's training set has captions.
    """
    from retable.tasks.audio.learner import CHALLENGE, ITEMS, clip_cost

    return 5 + ITEMS.get(config.data, CHALLENGE)["clotho"] / 15 * clip_cost(config) / 3
