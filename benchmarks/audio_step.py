"""Clips a second of training with and without patchout, of embedding, and of reading: from shards against decoding.

Recordings are noise of 10 s at 44.1 kHz, in FLAC; the reference decodes and resamples each anew (`files.decode`), ours
reads the shards of a data set, as waveforms at 32 kHz or as mel spectrograms. Training is PaSST-N's shape at a width of
192 and six blocks, and a small BERT, in float32. On a GPU (`RETABLE_BENCH_DEVICE=cuda`): PaSST-N and a text encoder of
roberta-base's shape, with random weights, at batch 64, in bfloat16 against float32.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.platform.train.worker import Worker
from retable.tasks.audio.collect.files import decode
from retable.tasks.audio.collect.recordings import AudioShards, Recording, write_dataset
from retable.tasks.audio.config import Config, Passt, Untrained
from retable.tasks.audio.data import Recordings
from retable.tasks.audio.learner import RetrievalLearner

DEVICE = os.environ.get("RETABLE_BENCH_DEVICE", "cpu")
CLIPS, SECONDS, RATE = 64, 10, 44100
BATCH, STEPS = (64, 20) if DEVICE == "cuda" else (16, 5)


def recordings(folder: Path) -> list[tuple[Recording, Path]]:
    """Write files of noise."""
    random, clips = np.random.default_rng(0), []
    for number in range(CLIPS):
        path = folder / f"{number}.flac"
        soundfile.write(path, random.normal(0, 0.1, SECONDS * RATE), RATE)
        captions = (f"noise of the kind {number} hisses for a while",)
        clips.append((Recording(number, path.name, "clotho", "training", str(number), SECONDS, captions), path))
    return clips


def source(folder: Path, features: Any, files: list[tuple[Recording, Path]]) -> Source:
    """Make a data set of the files."""
    storage = Storage.open(folder) / f"data/audio/{features}"
    items = [(recording, partial(decode, path)) for recording, path in files]
    return Source(storage, write_dataset(storage, features, "own", features, items))


def rate(call: Callable[[Any], object], things: list[Any]) -> float:
    """Return how many a second a function takes, one at a time."""
    call(things[0])
    start = time.perf_counter()
    for thing in things:
        call(thing)
    return len(things) / (time.perf_counter() - start)


def config(**changes: Any) -> Config:
    """Return the config that is trained."""
    if DEVICE == "cuda":
        audio, text = Passt(weights="random"), Untrained(family="roberta", width=768, depth=12, heads=12)
    else:
        audio, text = Passt(weights="random", width=192, depth=6, heads=3), Untrained()
    merged = Config(corpora=("clotho",), audio=audio, text=text, clip_seconds=10.0, batch=BATCH, steps=STEPS + 2)
    return replace(merged, **{"precision": "float32", **changes})


def training(data: Source, chosen: Config) -> float:
    """Return clips a second of training: the median of some steps, the batches read before."""
    recordings = Recordings(None, data, [chosen])
    learner = RetrievalLearner([chosen], recordings, Worker(device=DEVICE))
    times = []
    for batch in list(recordings.batches(0, 0, 0, 1)):
        start = time.perf_counter()
        float(learner.step(batch)["loss"])  # waits for the device
        times.append(time.perf_counter() - start)
    return BATCH / statistics.median(times[2:])


@torch.inference_mode()
def embedding(data: Source, chosen: Config) -> float:
    """Return clips a second of embedding recordings, read from shards."""
    recordings = Recordings(None, data, [chosen])
    learner = RetrievalLearner([chosen], recordings, Worker(device=DEVICE))
    learner.model.eval()
    start = time.perf_counter()
    for batch in recordings.embedding(recordings.recordings):
        learner.model.embed_audio(batch.audio.to(DEVICE), batch.lengths.to(DEVICE), batch.features).cpu()
    return CLIPS / (time.perf_counter() - start)


def measure() -> dict[str, Any]:
    """Measure reading, training and embedding."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    results: dict[str, Any] = {"device": DEVICE, "threads": torch.get_num_threads(), "seconds of a clip": SECONDS}
    with tempfile.TemporaryDirectory(prefix="retable-bench-") as name:
        files = recordings(Path(name))
        sets = {features: source(Path(name), features, files) for features in ("waveform", "mel")}
        results["reading, decoded: clips/s"] = decoded = rate(decode, [path for _, path in files])
        for features, data in sets.items():
            shards = AudioShards(data.folder, data.info)
            read = shards.waveform if features == "waveform" else shards.mel
            results[f"reading, {features} shards: clips/s"] = speed = rate(read, list(range(CLIPS)))
            results[f"reading, {features} shards: times as fast"] = speed / decoded
        plain = replace(config().audio, patchout_frequency=0, patchout_time=0)  # type: ignore[type-var]
        for features, data in sets.items():
            without = training(data, config(audio=plain))
            results[f"training, {features}: clips/s"] = without
            results[f"training, {features}, patchout: clips/s"] = speed = training(data, config())
            results[f"training, {features}, patchout: times as fast"] = speed / without
            results[f"embedding, {features}: clips/s"] = embedding(data, config())
        if DEVICE == "cuda":
            results["training, waveform, patchout, bfloat16: clips/s"] = half = training(
                sets["waveform"], config(precision="bfloat16")
            )
            results["bfloat16: times as fast"] = half / results["training, waveform, patchout: clips/s"]
    return results
