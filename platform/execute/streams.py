"""A stream of arrays through Ray Data: read ahead in other processes, handed over in order.

The order is the caller's list, whatever the number of blocks in flight: a function of seed and epoch, not of timing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from retable.platform.errors import Unreachable, UserError, one_line
from retable.platform.execute.session import cluster_resources, ray_cluster
from retable.platform.spec.arrays import Array, Arrays

if TYPE_CHECKING:
    import ray.data

Fetch = Callable[[Mapping[str, Any]], Arrays]

TASKS = 2
"""Pieces or blocks read at once. Their tasks reserve no CPU: they would wait for ever where trials hold every one."""

TASK_BYTES = 16 << 20
"""Pieces that a task fetches together take no more, unless one alone does."""

KINDS: dict[str, type[UserError]] = {"unreachable": Unreachable, "user": UserError}
"""Errors that keep their class on the way out of a task, the narrowest first."""

_SLOWEST = 86_400
"""Seconds a consumer may take over its pieces before Ray Data gives up: a day, as steps on a CPU are slow."""


def stream(pieces: Sequence[Mapping[str, object]], fetch: Fetch, size: int = 0) -> Iterator[Arrays]:
    """Yield `fetch(piece)` for each piece, in order; each is fetched once, by a Ray Data task.

    Without Ray (a plain process that trains alone) the pieces are fetched here.

    The arrays are views of shared memory, which stays taken while any of those fetched together is held.

    Args:
        pieces: what to fetch; plain values, small.
        fetch: a function of a module, or a partial of one; picklable.
        size: bytes that a piece's arrays take. A task takes some 60 ms of a core whatever it does, so small pieces, all
            with arrays of the same names, are fetched several at once. 0: unknown, each is fetched alone.

    Raises:
        UserError: what `fetch` raised.
        RuntimeError: in one line, what else went wrong in `fetch`.
    """
    import ray

    if not ray.is_initialized():
        yield from map(fetch, pieces)
        return
    if not pieces:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = _SLOWEST
    together = pieces_together(size, context.execution_options.resource_limits.object_store_memory)
    every = pa.table({"number": range(len(pieces)), "piece": [json.dumps(piece) for piece in pieces]})
    blocks = [every.slice(first, together) for first in range(0, len(pieces), together)]
    dataset: ray.data.Dataset = ray.data.from_blocks(blocks).map_batches(
        partial(_fetch_block, fetch=fetch),
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=0,
        compute=ray.data.TaskPoolStrategy(size=min(TASKS, len(blocks))),
    )
    dataset.context.execution_options.preserve_order = True
    batches = dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    for number, row in enumerate(row for table in cast(Iterator[pa.Table], batches) for row in rows_of(table)):
        if row["number"][0].as_py() != number:
            raise RuntimeError(f"Ray Data handed over piece {row['number'][0].as_py()} in place of {number}")
        yield decode(row)


def limit(gigabytes: float) -> None:
    """Limit how much of Ray's shared memory the streams of this process may read ahead; 0: half, Ray Data's own share.

    Ray Data keeps to it but for four pieces or so: those being read, and those about to be handed over.
    """
    import ray.data

    limits = ray.data.ExecutionResources(object_store_memory=gigabytes * 1e9 if gigabytes else None)
    ray.data.DataContext.get_current().execution_options.resource_limits = limits


def pieces_together(size: int, limit: float | None) -> int:
    """Return how many pieces of so many bytes a task fetches: four tasks' worth stay within the limit, where it can."""
    if not size:
        return 1
    room = TASK_BYTES if limit is None else min(TASK_BYTES, limit / 4)
    return max(1, int(room // size))


def rows_of(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table of `_fetch_block`, each a table.

    Raises:
        UserError: what `fetch` raised; an `Unreachable` stays one, so that the training may begin again elsewhere.
        RuntimeError: in one line, what else went wrong in `fetch`.
    """
    if "error" in table.column_names:
        raise KINDS.get(table["kind"][0].as_py(), RuntimeError)(table["error"][0].as_py())
    for row in range(len(table)):
        yield table.slice(row, 1)


def _fetch_block(block: pa.Table, fetch: Fetch) -> pa.Table:
    """Fetch the pieces of a block, in a task of Ray Data; an error is handed over: Ray would bury it in its words."""
    try:
        return pa.concat_tables([encode(row["number"], fetch(json.loads(row["piece"]))) for row in block.to_pylist()])
    except Exception as error:
        kind = next((kind for kind in KINDS if isinstance(error, KINDS[kind])), "other")
        return pa.table({"error": [one_line(error)], "kind": [kind]})


def encode(number: int, arrays: Arrays) -> pa.Table:
    """Return arrays of any shapes and plain types as a table of one row, without copying them."""
    columns: dict[str, pa.Array] = {"number": pa.array([number])}
    header = {}
    for name, array in arrays.items():
        header[name] = [array.dtype.str, array.shape]
        data = pa.py_buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        ends = pa.py_buffer(np.array([0, array.nbytes], np.int64))
        columns[f"array {name}"] = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data])
    columns["header"] = pa.array([json.dumps(header)])
    return pa.table(columns)


def decode(table: pa.Table) -> dict[str, Array]:
    """Return the arrays of such a table: read-only views of its memory."""
    header = json.loads(table["header"][0].as_py())
    return {
        name: np.frombuffer(table[f"array {name}"][0].as_buffer(), np.uint8).view(dtype).reshape(shape)
        for name, (dtype, shape) in header.items()
    }


def map_over(
    shares: Sequence[pa.Table], worker: Callable[..., Callable[[pa.Table], pa.Table]], *given: object, in_order: bool
) -> Iterator[dict[str, Any]]:
    """Distribute tables over actors of Ray Data; yield the rows of their results.

    An actor gets a GPU each where there are any, else a CPU. Every machine must see the files that the rows name.

    Args:
        shares: what an actor gets at once.
        worker: a class: each actor makes one of `given`, and calls it with a share.
        given: picklable.
        in_order: rows come in the order of the shares; else as they are done.
    """
    if not shares:
        return
    import ray

    with ray_cluster():
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = in_order
        available = cluster_resources()
        gpus, cpus = int(available.get("GPU", 0)), int(available.get("CPU", 1))
        dataset = ray.data.from_blocks(list(shares)).map_batches(
            worker,
            fn_constructor_args=given,
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=1 if gpus else 0,
            compute=ray.data.ActorPoolStrategy(size=max(1, min(len(shares), gpus or cpus - 1))),
        )
        for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from cast(pa.Table, table).to_pylist()
