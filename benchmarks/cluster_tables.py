"""All tables at smoke scale on three nodes and a bucket, in one submitted job, against those of one machine.

    python -m benchmarks.cluster_tables STORAGE [FOLDER]

STORAGE holds the tables that one machine filled (`retable reproduce --scale smoke`); what is fetched and logged goes to
FOLDER. The nodes are processes of this machine, a head without CPUs and three with one each, and the bucket is a local
server (moto). One table is trained by Ray Train groups of two workers, here and there: their numbers are compared, too.
Weather's images are 16-bit numbers in a bucket (docs/tasks/weather_data.md), so this machine fills weather's tables in
a bucket too. Every number must be equal but those of seconds. A job that ends badly is submitted again, as one would by
hand. What came out is written to `benchmarks/results/cluster_tables.json`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GROUPS = "audio/figure2"
"""Table that two workers train together: its batches can be shared by two."""
KEPT = Path(__file__).parent / "results" / "cluster_tables.json"
COMMAND = [sys.executable, "-W", "ignore", "-m", "retable.platform.cli"]


@contextmanager
def bucket() -> Iterator[str]:
    """Run a bucket of S3's protocol; yield its address without the folder, and with `{}` in its place."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys)
        client.create_bucket(Bucket="tables")
        yield f"s3://testing:testing@tables/{{}}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()


@contextmanager
def cluster() -> Iterator[str]:
    """Run a head without CPUs and three nodes with one each; yield the address of the dashboard."""
    from ray.cluster_utils import Cluster

    from retable.platform.execute.session import add_to_path, make_token

    add_to_path()
    make_token()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True})
    try:
        for _ in range(3):
            made.add_node(num_cpus=1, include_dashboard=False)
        yield f"http://{made.webui_url}"
    finally:
        made.shutdown()


def submitted(address: str, entrypoint: str, folder: Path, tries: int = 3) -> float:
    """Submit a job and wait for its end; submit it again where it ends badly. Return the seconds of all tries."""
    from retable.platform.execute.jobs import connect

    client, start = connect(address), time.monotonic()
    for number in range(tries):
        job = client.submit_job(entrypoint=entrypoint)
        while not (status := client.get_job_status(job)).is_terminal():
            time.sleep(5)
        (folder / f"job-{number}.log").write_text(client.get_job_logs(job))
        if status.value == "SUCCEEDED":
            return time.monotonic() - start
    raise SystemExit(f"the job ended badly {tries} times: {folder}/job-{tries - 1}.log")


def fetch(storage: str, output: Path) -> None:
    """Write the report of a storage to a folder."""
    words = [*COMMAND, "report", "--storage", storage, "--output", str(output / "report")]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def measured() -> set[tuple[str, str]]:
    """Return table and row of each measurement: numbers of seconds, which are no two machines' own."""
    from retable.platform.api import expand_names
    from retable.platform.spec.table import Measurement
    from retable.platform.spec.task import find_table

    tables = {name: find_table(name)[1] for name in expand_names(())}
    return {(name, row.label) for name, table in tables.items() for row in table.rows if isinstance(row, Measurement)}


def differing(new: Path, *old: Path) -> tuple[int, list[str]]:
    """Compare a report's numbers, each table with the first report that has it; return how many, and the unequal."""
    import numpy as np

    from tests.compare_cells import cells_of

    count, different, seconds = 0, [], {(name.replace("/", "-"), row) for name, row in measured()}
    for file in sorted((new / "report").glob("*.csv")):
        first = next(folder for folder in old if (folder / "report" / file.name).exists())
        before, after = cells_of(first / "report" / file.name), cells_of(file)
        name = file.stem.removesuffix("-smoke")
        keys = [key for key in before.keys() | after.keys() if (name, key[0]) not in seconds]
        count += len(keys)
        same = [key for key in keys if key in before and key in after and np.array_equal(before[key], after[key])]
        different += [f"{file.name}: {key}: {before.get(key)} -> {after.get(key)}" for key in set(keys) - set(same)]
    return count, different


def main(reference: str, folder: str = "cluster-tables") -> int:
    """Run all of it; return 1 where a number differs."""
    from retable.platform.store.provenance import collect

    os.environ["RETABLE_TASKS"] = ""  # the four systems alone, not the toy tasks that the other benchmarks add
    root = Path(folder).absolute()
    root.mkdir(parents=True, exist_ok=True)
    alone = root / "one-machine"
    two = [*COMMAND, "reproduce", GROUPS, "--scale", "smoke", "--workers", "2"]
    subprocess.run([*two, "--storage", str(alone)], check=True)
    os.environ.pop("RAY_ADDRESS", None)
    with bucket() as storage:
        weather = storage.format("weather")
        subprocess.run([*COMMAND, "reproduce", "weather", "--scale", "smoke", "--storage", weather], check=True)
        fetch(weather, root / "weather")
        every, groups = storage.format("all"), storage.format("two")
        commands = [[*two, "--storage", groups], [*COMMAND, "reproduce", "--scale", "smoke", "--storage", every]]
        with cluster() as address:
            seconds = submitted(address, " && ".join(map(shlex.join, commands)), root)
        fetch(every, root / "all")
        fetch(groups, root / "two")
    numbers, different = differing(root / "all", root / "weather", Path(reference))
    theirs, wrong = differing(root / "two", alone)
    print("\n".join([*different, *wrong]))
    result = {"numbers": numbers, "differ": len(different), "numbers of two workers": theirs}
    result |= {"of those differ": len(wrong), "seconds": round(seconds)}
    where = collect()
    kept = {"result": result} | {key: where[key] for key in ("device", "versions", "started")}
    KEPT.write_text(json.dumps(kept, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return bool(different or wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
