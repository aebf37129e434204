"""A data set in the storage: a table of recordings with their captions, and their sound in Parquet shards."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float16, Float32, Int16

from retable.platform.errors import UserError, words
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import Storage
from retable.tasks.audio.config import BANDS, HOP, SAMPLE_RATE

T = TypeVar("T")
Waveform = Float32[np.ndarray, " samples"]

Kind = Literal["generated", "dcase2023", "own"]
Features = Literal["waveform", "mel"]

SPLITS = ("training", "validation", "test")
TABLE = "recordings.parquet"
LEFT_OUT = "left_out.json"
"""A line for each recording that could not be decoded."""
BEFORE = "before.json"
"""Content of the earlier `dataset.json`, while an import replaces it."""
REMARKS = "remarks.json"
"""Oddities of the recordings that were decoded: a line each."""
SHARD = 64 << 20
"""Bytes of sound in a shard, about."""
GROUP = 1 << 20
"""Bytes of sound that are read at once to get at one recording, about."""
SECOND = {"waveform": 2 * SAMPLE_RATE, "mel": 2 * BANDS * SAMPLE_RATE // HOP}
"""Bytes of a second of sound in memory."""
OPEN = 16
"""Shards whose tables of contents are kept."""
RECORDING = pa.schema(
    [
        ("recording", pa.int64()),
        ("file", pa.string()),
        ("corpus", pa.string()),
        ("split", pa.string()),
        ("source", pa.string()),
        ("seconds", pa.float64()),
        ("captions", pa.list_(pa.string())),
        ("keywords", pa.string()),
        ("leak", pa.bool_()),
        ("rewrites", pa.list_(pa.list_(pa.string()))),
        ("facts", pa.string()),
    ]
)


@dataclass(frozen=True)
class Recording:
    """One audio file with its captions."""

    recording: int
    """Its number in the data set, from 0 on."""
    file: str
    """Its name in the original data."""
    corpus: str
    split: str
    """training, validation or test."""
    source: str
    """Origin of the sound, such as `freesound:12345`; "" if unknown. Equal ones are the same sound."""
    seconds: float
    captions: tuple[str, ...]
    keywords: str = ""
    """Separated by ';'."""
    leak: bool = False
    """Whether it is a training recording that is also in the validation or test set."""
    rewrites: tuple[tuple[str, ...], ...] = ()
    """Rewritten forms of each caption; empty where there are none."""
    facts: str = ""
    """JSON: what a generated recording truly holds."""


class Decoded(NamedTuple):
    """A sound, and what is odd about its file, a line each."""

    waveform: Waveform
    remarks: tuple[str, ...] = ()


Decoder = Callable[[], Waveform | Decoded]
"""Returns a recording's sound; raises UserError where its file is broken."""
Item = tuple[Recording, Decoder]


def read_recordings(folder: Storage) -> list[Recording]:
    """Return a data set's recordings in order.

    Raises:
        UserError: where the table is missing or broken.
    """
    try:
        table = folder.read_table(TABLE, schema=RECORDING, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise UserError(
            f"{folder}/{TABLE}: missing or broken ({words(error)}); make or import the data set again"
        ) from error
    return [
        Recording(**{**row, "captions": tuple(row["captions"]), "rewrites": tuple(map(tuple, row["rewrites"]))})
        for row in table.to_pylist()
    ]


def read_info(folder: Storage) -> dict[str, Any]:
    """Return what `dataset.json` says, or said before an import that did not end; nothing where there was none."""
    return next((folder.read_json(file) for file in ("dataset.json", BEFORE) if folder.exists(file)), {})


def write_recordings(folder: Storage, recordings: Sequence[Recording]) -> None:
    """Write the table of recordings."""
    table = pa.table(
        {name: [getattr(recording, name) for recording in recordings] for name in RECORDING.names}, RECORDING
    )
    _write_table(folder, TABLE, table, len(recordings))


def encode(waveform: Waveform) -> Int16[np.ndarray, " samples"]:
    """Return samples as 16-bit integers, little-endian: a file of 16 bits comes back exactly."""
    return np.clip(np.rint(waveform * 32768.0), -32768, 32767).astype("<i2")


def write_dataset(
    folder: Storage,
    name: str,
    kind: Kind,
    features: Features,
    items: Iterable[Item],
    show: Callable[[int, int], None] = lambda done, total: None,
    workers: int = 1,
    rewrites: str = "",
    **more: object,
) -> dict[str, Any]:
    """Write a data set whose leaks are known, and return what `dataset.json` holds; see `write_shards` and `finish`."""
    written = write_shards(folder, features, items, show, workers)
    return finish(folder, name, kind, features, written, rewrites, **more)


@dataclass(frozen=True)
class Written:
    """Contents of a data set's shards."""

    recordings: list[Recording]
    shards: dict[str, list[str]]
    """Split -> names of files."""
    starts: dict[str, int]
    """Name of a file -> number of its first recording; the others follow."""
    sounds: dict[str, str]
    """Name of a file -> SHA-256 of the sound in it."""
    left_out: list[str]
    """A line for each recording that could not be decoded."""
    remarks: list[str]
    """Oddities of the recordings that could be decoded, a line each."""
    places: list[int]
    """Each recording's place among the items."""


def write_shards(
    folder: Storage,
    features: Features,
    items: Iterable[Item],
    show: Callable[[int, int], None] = lambda done, total: None,
    workers: int = 1,
    stamps: Sequence[str] = (),
) -> Written:
    """Write the sound of a data set, shard by shard.

    A recording that cannot be decoded is left out; those after it move up. Else the numbers of the recordings are
    their places among the items. A shard that an interrupted call wrote is not written again. One shard's sound is in
    memory at a time.

    Args:
        folder: of the data set.
        features: whether waveforms are kept or their mel spectrograms, which take 2.5 times less and need no
            transform in training, but allow no shift of the mel bands.
        items: the recordings, those of a split together.
        show: called with the recordings done and in all.
        workers: processes that decode; with more than one, decoders must be picklable.
        stamps: what each recording's sound depends on besides what is known of it, such as its file's time of change:
            where one has changed, the shard is written again.

    Raises:
        UserError: if no recording can be decoded; an earlier data set then stays as it is.
    """
    everything = list(items)
    written = Written([], {split: [] for split in SPLITS}, {}, {}, [], [], [])
    done = 0
    with _pool(workers) as work:
        for plan in _plans(everything):
            split = plan[0][0].split
            file = f"{split}-{len(written.shards[split]):05d}.parquet"
            path, first, own = f"audio/{file}", len(written.recordings), stamps[done : done + len(plan)]
            recordings, metadata = _write_shard(folder, path, features, plan, own, first, work)
            if recordings:
                written.shards[split].append(file)
                written.starts[file] = first
                written.sounds[file] = metadata["sound"]
            written.recordings.extend(recordings)
            written.left_out.extend(metadata["broken"].values())
            written.remarks.extend(metadata.get("odd", ()))
            written.places.extend(done + index for index in range(len(plan)) if str(index) not in metadata["broken"])
            done += len(plan)
            show(done, len(everything))
    if not written.recordings:
        why = f"; the first: {written.left_out[0]}" if written.left_out else ""
        raise UserError(f"{folder}: none of {done} recordings can be read{why}")
    folder.remove("dataset.json")
    for old in set(folder.list("audio")) - {*written.starts}:
        folder.remove(f"audio/{old}")
    return written


def finish(
    folder: Storage, name: str, kind: Kind, features: Features, written: Written, rewrites: str = "", **more: object
) -> dict[str, Any]:
    """Write the table of recordings and `dataset.json`, and return what that holds.

    Args:
        folder: of the data set.
        name: the data set's.
        kind: where it comes from.
        features: what its shards keep.
        written: its recordings and shards.
        rewrites: who or what rewrote captions; none: they have no other forms.
        **more: what else `dataset.json` says.
    """
    recordings, sound = written.recordings, _sha256([checksum.encode() for checksum in written.sounds.values()])
    write_recordings(folder, recordings)
    folder.write_json(LEFT_OUT, written.left_out)
    folder.write_json(REMARKS, written.remarks)
    info = {
        "name": name,
        "kind": kind,
        "real": kind != "generated",
        "features": features,
        "rows": {split: sum(recording.split == split for recording in recordings) for split in SPLITS},
        "captions": {
            split: sum(len(recording.captions) for recording in recordings if recording.split == split)
            for split in SPLITS
        },
        "corpora": dict(sorted(Counter(recording.corpus for recording in recordings).items())),
        "seconds": sum(recording.seconds for recording in recordings),
        "bytes": round(
            sum(recording.seconds for recording in recordings if recording.split != "test") * SECOND[features]
        ),
        "leaks": sum(recording.leak for recording in recordings),
        "shards": written.shards,
        "starts": written.starts,
        "sound": sound,
        "left_out": len(written.left_out),
        "rewrites": rewrites,
        "digest": digest(recordings, [sound]),
        **more,
    }
    folder.write_json("dataset.json", info)
    return info


def digest(recordings: Iterable[Recording], sounds: Iterable[str]) -> str:
    """Return the SHA-256 of what is known of recordings, and of words that stand for their sound."""
    lines = (json.dumps(asdict(recording), sort_keys=True) for recording in recordings)
    return hashlib.sha256("\n".join((*lines, *sounds)).encode()).hexdigest()


def _plans(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield the items of each shard: a run of one split that is full by the lengths its recordings claim."""
    plan: list[Item] = []
    filled = 0.0
    for recording, decode in items:
        size = 2 * SAMPLE_RATE * recording.seconds
        if plan and (recording.split != plan[0][0].split or filled + size > SHARD):
            yield plan
            plan, filled = [], 0.0
        plan.append((recording, decode))
        filled += size
    if plan:
        yield plan


Kept = tuple[float, bytes, tuple[str, ...]] | UserError
"""A recording's seconds, what is kept of its sound and what is odd about it; or why it could not be decoded."""
Work = Callable[[Callable[[Decoder], Kept], Sequence[Decoder]], Iterator[Kept]]
"""A function that maps another one over decoders, in order."""


@contextmanager
def _pool(workers: int) -> Iterator[Work]:
    """Yield what maps in so many processes; with one, in this one. They start when there is work."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _one_thread) as pool:
        yield partial(pool.map, chunksize=4)


def _one_thread() -> None:
    """Leave the other cores to the other processes."""
    import torch

    torch.set_num_threads(1)


def _write_shard(
    folder: Storage,
    path: str,
    features: Features,
    plan: Sequence[Item],
    stamps: Sequence[str],
    first: int,
    work: Work,
) -> tuple[list[Recording], dict[str, Any]]:
    """Write one shard unless it is there as wanted; return its recordings, and what it says of itself.

    That is what was wanted, the recordings' seconds, a line for each place that is left out, and the SHA-256 of the
    sound.
    """
    wanted = f"{digest([recording for recording, _ in plan], stamps)} {features} {first}"
    metadata = _said(folder, path)
    if metadata.get("wanted") != wanted:
        metadata = {"wanted": wanted, "seconds": [], "broken": {}, "odd": []}
        sounds = []
        for index, kept in enumerate(work(partial(_keep, features), [decode for _, decode in plan])):
            if isinstance(kept, UserError):
                metadata["broken"][str(index)] = str(kept)
                continue
            metadata["seconds"].append(kept[0])
            sounds.append(kept[1])
            metadata["odd"] += kept[2]
        metadata["sound"] = _sha256(sounds)
        if sounds:
            folder.remove("dataset.json")  # it is no longer that of the shards
            numbers = np.arange(first, first + len(sounds))
            table = pa.table({"recording": numbers, "audio": pa.array(sounds, pa.binary())})
            table = table.replace_schema_metadata({"shard": json.dumps(metadata)})
            rows = max(1, GROUP * len(sounds) // max(sum(map(len, sounds)), 1))
            _write_table(folder, path, table, rows)
    left = [recording for index, (recording, _) in enumerate(plan) if str(index) not in metadata["broken"]]
    numbered = zip(left, metadata["seconds"], strict=True)
    written = [
        replace(original, recording=first + n, seconds=seconds) for n, (original, seconds) in enumerate(numbered)
    ]
    return written, metadata


def _sha256(parts: Sequence[bytes | pa.Buffer]) -> str:
    """Return the SHA-256 of several pieces of data, and of where each ends."""
    hashed = hashlib.sha256(json.dumps([len(part) for part in parts]).encode())
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def _keep(features: Features, decode: Decoder) -> Kept:
    """Decode a recording and return what a shard keeps of it."""
    try:
        made = decode()
    except UserError as error:
        return error
    waveform, remarks = made if isinstance(made, Decoded) else Decoded(made)
    kept = encode(waveform) if features == "waveform" else _mel(waveform)
    return len(waveform) / SAMPLE_RATE, kept.tobytes(), remarks


def _said(folder: Storage, path: str) -> dict[str, Any]:
    """Return what a shard says of itself; nothing where it is missing or damaged."""
    try:
        table = folder.read_table(path, page_checksum_verification=True)
        metadata: dict[str, Any] = json.loads(table.schema.metadata[b"shard"])
        is_intact = _sha256([sound.as_buffer() for sound in table["audio"]]) == metadata["sound"]
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, RecursionError):
        return {}
    return metadata if is_intact else {}


def _mel(waveform: Waveform) -> Float16[np.ndarray, "frames 128"]:
    import torch

    with torch.no_grad():
        mel: Array = _mel_module()(torch.from_numpy(waveform)[None])[0].T.numpy()
    return mel.astype("<f2")


@lru_cache(maxsize=1)
def _mel_module() -> Any:
    from retable.tasks.audio.encoders.mel import Mel

    return Mel().eval()


def _write_table(folder: Storage, path: str, table: pa.Table, rows: int) -> None:
    how = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    folder.write_table(path, table, row_group_size=max(rows, 1), **how)


class AudioShards:
    """The sound of a data set, by the recordings' numbers; a recording costs the reading of about 1 MB."""

    def __init__(self, folder: Storage, info: Mapping[str, Any]) -> None:
        """Take a data set's folder and its `dataset.json`."""
        self._folder = folder
        self._type = "<i2" if info["features"] == "waveform" else "<f2"
        self._files = sorted(info["starts"], key=info["starts"].__getitem__)
        self._starts = np.array([info["starts"][file] for file in self._files])
        self._open: OrderedDict[str, tuple[pq.ParquetFile, Array]] = OrderedDict()

    def waveform(self, recording: int) -> Waveform:
        """Return a recording's waveform at 32 kHz, in [-1, 1].

        Raises:
            UserError: where the shard is missing or broken.
        """
        if self._type != "<i2":
            raise ValueError("this data set keeps mel spectrograms, no waveforms")
        return self.stored(recording).astype(np.float32) / np.float32(32768)

    def mel(self, recording: int) -> Float32[np.ndarray, "frames 128"]:
        """Return a recording's log-mel spectrogram, not normalised, 100 frames a second.

        Raises:
            UserError: where the shard is missing or broken.
        """
        if self._type == "<i2":
            return _mel(self.waveform(recording)).astype(np.float32)
        return self.stored(recording).astype(np.float32).reshape(-1, BANDS)

    def stored(self, recording: int) -> Array:
        """Return a recording's values as they are stored, int16 samples or float16 mel, one-dimensional and read-only.

        Raises:
            UserError: where the shard is missing or broken.
        """
        shard = int(np.searchsorted(self._starts, recording, "right")) - 1
        row = recording - int(self._starts[shard])

        def read(file: pq.ParquetFile, ends: Array) -> Array:
            group = int(np.searchsorted(ends, row, "right"))
            table = file.read_row_group(group)
            index = row - (int(ends[group - 1]) if group else 0)
            if table["recording"][index].as_py() != recording:
                raise IndexError(recording)
            return np.frombuffer(table["audio"][index].as_buffer(), self._type)

        return self._reading(self._files[shard], read)

    def all_of(self, name: str) -> tuple[list[int], list[Array]]:
        """Return the numbers of a shard's recordings and what is stored of each; see `stored`.

        Raises:
            UserError: where the shard is missing or broken.
        """
        table = self._reading(name, lambda file, _: file.read())
        return table["recording"].to_pylist(), [np.frombuffer(x.as_buffer(), self._type) for x in table["audio"]]

    def _reading(self, name: str, read: Callable[[pq.ParquetFile, Array], T]) -> T:
        """Return `read` of a shard and of where its row groups end; a shard whose reading failed is opened again."""

        def once() -> T:
            try:
                return read(*self._opened(name))
            except OSError:
                self._open.pop(name, None)
                raise

        try:
            return self._folder.retried(f"audio/{name}", once)
        except (OSError, pa.ArrowException, IndexError) as error:
            where = f"{self._folder}/audio/{name}"
            raise UserError(f"{where}: missing, broken or of another set; make or import it again") from error

    def _opened(self, name: str) -> tuple[pq.ParquetFile, Array]:
        if name not in self._open:
            file = pq.ParquetFile(
                f"{self._folder.root}/audio/{name}",
                filesystem=self._folder.filesystem,
                page_checksum_verification=True,
            )
            groups = range(file.metadata.num_row_groups)
            self._open[name] = file, np.cumsum([file.metadata.row_group(group).num_rows for group in groups])
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name]
