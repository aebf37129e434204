"""Points near a line, as Parquet."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from retable.platform.errors import UserError


def where(config):
    return "line/points"


def prepare(config, storage):
    folder = storage / "data/line/points"
    x = np.random.default_rng(0).uniform(-1, 1, 64).astype(np.float32)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": x, "y": 2 * x + 1}), buffer, write_page_checksum=True)
    folder.write("points.parquet", buffer.getvalue())
    folder.write_json("dataset.json", {"points": 64, "digest": "64 points"})


def read(folder):
    path = "points.parquet"
    try:
        table = folder.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{folder}/{path}: missing or damaged; remove {folder} and run again") from error
    return {name: table[name].to_numpy() for name in ("x", "y")}


class Points:
    def __init__(self, columns, source, configs):
        self.columns, self.config, self.batch = columns, configs[0], configs[0].batch
        self.steps = 64 // self.batch

    def batches(self, epoch, start, rank, world):
        order = np.random.default_rng([self.config.seed, epoch]).permutation(64)
        share = self.batch // world
        for step in range(start, self.steps):
            rows = order[step * self.batch + rank * share :][:share]
            yield tuple(torch.from_numpy(self.columns[name][rows]) for name in ("x", "y"))
