"""What a plan takes on a cluster: sums worked out by hand on a toy, and one line for each mistake in the files."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from retable.platform.cli import app as cli
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.plan.audit import audit, lines, summary
from retable.platform.plan.cluster_spec import read_cluster, read_prices, spot
from retable.platform.plan.cost import Learnt, Rates, estimate, learn, remarks
from retable.platform.plan.plan import compile_plan
from retable.platform.spec.resources import Requirements
from retable.platform.spec.table import Row
from retable.platform.spec.task import find_table
from retable.platform.store.provenance import device_name
from retable.platform.store.run import RunFolder
from retable.tasks.line.config import Config

ROOT = Path(__file__).resolve().parents[3]
LINE, TABLE = find_table("line/table1")
HOUR = 3600.0

PRICES = """
currency = "EUR"
gigabyte_month = 0.5
[instances.small]
hour = 0.25
[instances.cores]
hour = 2.0
[instances.card]
hour = 10.0
spot = 4.0
gpu = "NVIDIA Toy"
gpu_cores = 100
"""
CLUSTER = {
    "cluster_name": "toy",
    "max_workers": 5,
    "idle_timeout_minutes": 30,
    "provider": {"type": "aws", "region": "us-west-2"},
    "auth": {"ssh_user": "ubuntu"},
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "node_config": {"InstanceType": "small"}},
        "cpu": {"max_workers": 4, "resources": {"CPU": 4}, "node_config": {"InstanceType": "cores"}},
        "gpu": {
            "max_workers": 3,
            "resources": {"CPU": 8, "GPU": 2},
            "node_config": {"InstanceType": "card", "InstanceMarketOptions": {"MarketType": "spot"}},
        },
    },
}


@pytest.fixture
def files(tmp_path):
    """Write both files and read them: `files(change)` changes the cluster first."""

    def read(change=lambda found: None, prices=PRICES):
        found = yaml.safe_load(yaml.safe_dump(CLUSTER))
        change(found)
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(found))
        (tmp_path / "prices.toml").write_text(prices)
        costs = read_prices(str(tmp_path / "prices.toml"))
        return read_cluster(str(tmp_path / "cluster.yaml"), costs), costs

    return read


def toy(storage, **task):
    """Two tables: of three trainings of 8 core-hours, one of them of the second table alone, and one its child."""
    known = {
        "cost": lambda config: 8 * HOUR,
        "view_cost": lambda config, view: 2 * HOUR,
        "gpu_work": lambda config: None,
        "needs": lambda config, stage: Requirements(gpus=1.0 if stage == "train" else 0.0),
    }
    line = replace(LINE, **known | task)
    parent = {"init": "parent", "rate": 0.01}  # of a run with the default rate, 0.1
    first = [Row(label="slow", overrides={"rate": 0.001}, view={}), Row(label="fast", overrides={"rate": 0.1}, view={})]
    second = [Row(label="fast", overrides={"rate": 0.1}, view={}), Row(label="tuned", overrides=parent, view={})]
    second.append(Row(label="early", overrides={"rate": 0.1}, view={"epoch": 1}))
    tables = {
        name: replace(TABLE, rows=rows, over={}, claims=()) for name, rows in (("line/a", first), ("line/b", second))
    }
    return compile_plan({name: (line, table) for name, table in tables.items()}, storage)


def no_gpu(found):
    del found["available_node_types"]["gpu"]


def test_on_cpus_it_is_core_hours_shared_out_to_nodes(storage, files):
    cluster, prices = files(no_gpu)
    found = estimate(toy(storage), cluster, prices, Rates())
    a, b = found.tables["line/a"], found.tables["line/b"]
    # a: 2 trainings of 8 h and 2 views of 2 h, on nodes of 4 cores. b: the child, its view, another view of `fast`.
    assert (a.trainings, a.evaluations, a.hours["cpu"]) == (2, 2, (2 * 8 + 2 * 2) / 4)
    assert (b.trainings, b.evaluations, b.hours["cpu"]) == (1, 2, (8 + 2 + 2) / 4)
    assert found.nodes == {"cpu": 2}, "3 trainings and 4 views, 4 at once on a node"
    assert found.wall == found.longest == 8 + 8 + 2, "the child waits for its parent, its view for the child"
    assert found.idle["cpu"] == 2 * 0.5, "half an hour of each"
    assert found.total == pytest.approx((5 + 3 + 1) * 2.0 + 18 * 0.25)
    assert found.guessed == found.measured == 0


def test_trainings_go_to_spot_gpus_counted_in_cores_where_nothing_was_measured(storage, files):
    cluster, prices = files()
    found = estimate(toy(storage), cluster, prices, Rates("NVIDIA Toy", {}))
    assert found.tables["line/a"].hours == {"gpu": pytest.approx(2 * 0.08 / 2), "cpu": 2 * 2 / 4}
    assert found.tables["line/b"].hours == {"gpu": pytest.approx(0.08 / 2), "cpu": 2 * 2 / 4}
    assert found.nodes == {"cpu": 1, "gpu": 2} and (found.guessed, found.measured) == (3, 0)
    assert found.wall == pytest.approx(0.08 + 0.08 + 2)
    busy = 3 * 0.08 / 2 * 4.0 + 2 * 2.0
    assert found.total == pytest.approx(busy + 0.5 * 2.0 + 2 * 0.5 * 4.0 + 2.16 * 0.25)
    assert "one NVIDIA Toy counted as 100 cores (a guess in" in dict(remarks(found))["times"]


def test_step_times_count_for_the_gpu_that_they_were_measured_on(storage, files):
    cluster, prices = files()
    plan = toy(storage, gpu_work=lambda config: ("line", 7200.0) if config.rate == 0.1 else ("other", 1.0))
    found = estimate(plan, cluster, prices, Rates("NVIDIA Toy", {"line": 4.0}))
    assert (found.measured, found.guessed) == (1, 2)
    assert found.tables["line/a"].hours["gpu"] == pytest.approx((0.5 + 0.08) / 2)
    assert "of 1 trainings as measured on NVIDIA Toy" in dict(remarks(found))["times"]
    elsewhere = estimate(plan, cluster, prices, Rates("NVIDIA Other", {"line": 4.0}))
    assert (elsewhere.measured, elsewhere.guessed) == (0, 3)


def test_predictions_go_to_gpus_where_the_task_says_so(storage, files):
    cluster, prices = files()
    found = estimate(toy(storage, needs=lambda config, stage: Requirements(gpus=1.0)), cluster, prices, Rates())
    assert found.nodes == {"gpu": 3} and not found.busy["cpu"]
    assert found.busy["gpu"] == pytest.approx((3 * 0.08 + 4 * 0.02) / 2)


def test_trainings_that_ask_for_no_gpu_go_to_cpus(storage, files):
    """`weather`'s trivial baselines, beside its networks."""
    cluster, prices = files()

    def needs(config, stage):
        return Requirements(gpus=1.0 if stage == "train" and config.rate != 0.001 else 0.0)

    found = estimate(toy(storage, needs=needs), cluster, prices, Rates())
    assert found.tables["line/a"].hours == {"gpu": pytest.approx(0.08 / 2), "cpu": (8 + 2 * 2) / 4}
    assert (found.guessed, found.measured) == (2, 0)


def test_a_cluster_of_gpu_nodes_alone_predicts_on_their_cpus(storage, files):
    cluster, prices = files(lambda found: found["available_node_types"].pop("cpu"))
    found = estimate(toy(storage), cluster, prices, Rates())
    assert found.busy["gpu"] == pytest.approx(3 * 0.08 / 2 + 4 * 2 / 8)


def test_the_limits_of_the_file_bound_nodes_and_time(storage, files):
    def narrow(found):
        found["max_workers"] = 1
        found["available_node_types"]["cpu"]["resources"] = {"CPU": 1}
        no_gpu(found)

    cluster, prices = files(narrow)
    found = estimate(toy(storage, cost=lambda config: 80 * HOUR), cluster, prices, Rates())
    assert found.nodes == {"cpu": 1} and found.longest == 80 + 80 + 2 and found.wall == 3 * 80 + 4 * 2


def test_where_nodes_are_few_they_go_where_the_work_is(storage, files):
    cluster, prices = files(lambda found: found.update(max_workers=3))
    cluster = replace(cluster, workers=tuple(replace(kind, cpus=1) for kind in cluster.workers))
    found = estimate(toy(storage, view_cost=lambda config, view: 90 * HOUR), cluster, prices, Rates())
    assert found.nodes == {"cpu": 2, "gpu": 1} and found.wall == pytest.approx(4 * 90 / 2)


def test_a_cluster_without_a_limit_is_not_counted_to_its_end(storage, files):
    """KubeRay's default is 2147483647 workers."""
    cluster, prices = files(lambda found: found.update(max_workers=2**31 - 1))
    assert estimate(toy(storage), replace(cluster, most=2**62), prices, Rates()).nodes == {"cpu": 1, "gpu": 2}


def test_a_row_of_many_views_counts_each_training_once(storage):
    row = Row(label="fast", overrides={"rate": 0.1}, view={})
    table = replace(TABLE, rows=[row], over={"seed": (0, 1), "view.epoch": (1, 2, 3)}, claims=())
    line = replace(LINE, cost=lambda config: HOUR, view_cost=lambda config, view: HOUR / 10)
    line = replace(line, gpu_work=lambda config: ("line", HOUR), needs=lambda config, stage: Requirements(gpus=1.0))
    plan = compile_plan({"line/t": (line, table)}, storage)
    text = "\n".join(lines(audit(plan, {}, {"line": 1.0})))
    assert "fast: 2 new" in text and "2.6 core hours, or 2 GPU hours; runs" in text and "more" not in text
    assert "view.epoch 1, 2, 3" in text and "view epoch=" not in text


def test_combinations_that_two_tables_share_count_once(storage, capsys):
    line, joined = LINE, replace(TABLE, claims=())
    plan = compile_plan({"line/a": (line, joined), "line/b": (line, joined)}, storage)
    assert summary(plan, {}, 0.0)["combinations"] == {"all": 2, "to_do": 2}
    cli.print_plan(plan)
    assert re.search(r"combinations +2 \(2 to do\)", capsys.readouterr().out)


def test_nodes_that_are_always_there_cost_while_they_wait(storage, files):
    def steady(found):
        no_gpu(found)
        found["available_node_types"]["cpu"]["min_workers"] = 3

    cluster, prices = files(steady)
    found = estimate(toy(storage), cluster, prices, Rates())
    assert found.idle["cpu"] == pytest.approx(3 * 18 - 8)


def test_what_is_done_costs_nothing_and_says_how_many_bytes_a_run_has(storage, files):
    cluster, prices = files(no_gpu)
    assert dict(remarks(estimate(toy(storage), cluster, prices, Rates())))["storage"].startswith("not known")
    for training in list(toy(storage).trainings.values())[:2]:
        folder = RunFolder.of(storage, LINE, training.config)
        weights = {str(epoch): "digest" for epoch in range(1, 4)}
        folder.folder.write_json("result.json", {"metrics": {}, "data": "64 points", "weights": weights})
        folder.folder.write("weights/epoch-0003.safetensors", b"x" * 10**6)
    storage.write("runs/line/0123456789abcdef/weights/epoch-0001.safetensors", b"x" * 10**8)  # of no table
    found = estimate(toy(storage), cluster, prices, Rates())
    assert (found.tables["line/a"].trainings, found.tables["line/b"].trainings) == (0, 1)
    each = sum(file.stat().st_size for file in Path(storage.root, training.folder.path).rglob("*") if file.is_file())
    assert found.storage == (3 * each, [])
    assert dict(remarks(found))["storage"].startswith(f"{3 * each / 1e6:.1f} MB, EUR <0.01 a month")


def test_every_number_of_a_plan_is_in_one_table_only(storage, files):
    """The sums over tables are those of the plan, whatever tables share."""
    cluster, prices = files(no_gpu)
    names = ("line/table1", "line/figure1")
    plan = compile_plan({name: find_table(name) for name in names}, storage)
    found = estimate(plan, cluster, prices, Rates())
    assert sum(work.trainings for work in found.tables.values()) == len(plan.missing)
    assert sum(work.evaluations for work in found.tables.values()) == len(plan.unscored)
    assert found.busy["cpu"] == pytest.approx(plan.cost / HOUR / 4)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("prices", "not a TOML file"),
        ("currency = 3", 'currency must be a word such as "USD"'),
        (
            'currency = "EUR"\ngigabyte_month = "1"\n[instances.a]\nhour = 1',
            "gigabyte_month must be a number, 0 or more",
        ),
        (
            'currency = "EUR"\ngigabyte_month = nan\n[instances.a]\nhour = 1',
            "gigabyte_month must be a number, 0 or more",
        ),
        ('currency = "EUR"\ninstances = 3', "instances must be sections"),
        ('curency = "EUR"', "there is no entry 'curency'; did you mean 'currency'?"),
        (PRICES + "spott = 3", "there is no entry 'spott'; did you mean 'spot'?"),
        (PRICES.replace("hour = 2.0", "hour = -2"), r'\[instances."cores"\]: hour must be a number, 0 or more'),
        (
            PRICES.replace("hour = 2.0", "cpus = 2"),
            r'\[instances."cores"\]: hour, the price of a node for an hour, is missing',
        ),
        (PRICES.replace('"NVIDIA Toy"', "4"), "gpu must be the name of a GPU"),
        (
            PRICES.replace("[instances.cores]", "[instances.other]"),
            "no price of cores, the node type cpu of .*; add a section",
        ),
        (PRICES.replace("spot = 4.0", ""), "spot, the price of a spot node for an hour, is missing; gpu in"),
        (PRICES.replace("gpu_cores = 100", ""), "gpu_cores is missing: the node type gpu has GPUs"),
        (PRICES.replace("gpu_cores = 100", "gpu_cores = 0"), "gpu_cores is missing: the node type gpu has GPUs"),
    ],
)
def test_a_mistake_in_the_prices_is_one_line(files, written, said):
    with pytest.raises(UserError, match=said) as refused:
        files(prices=written)
    assert "\n" not in str(refused.value) and "prices.toml" in str(refused.value)


def nothing_grows(found):
    for kind in found["available_node_types"].values():
        kind["max_workers"] = 0


def resources_unsaid(found):
    found["available_node_types"]["cpu"]["resources"] = {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.update(max_wokers=3), "not as Ray's cluster launcher wants it: .*max_wokers"),
        (lambda found: found.update(cluster_name=3), "not as Ray's cluster launcher wants it: cluster_name: 3 is not"),
        (lambda found: found.pop("provider"), "not a Ray cluster file, as it has no provider; name one"),
        (lambda found: found.update(head_node_type="hed"), "`head_node_type` must be one of"),
        (lambda found: found.update(provider="aws"), "not a Ray cluster file"),
        (lambda found: found.update(provider={"type": "local"}), "not as Ray's cluster launcher wants it"),
        (lambda found: found.update(max_workers=0), "no worker with CPUs may ever start"),
        (lambda found: found.update(available_node_types=[]), "not as Ray's cluster launcher wants it"),
        (nothing_grows, "no worker with CPUs may ever start"),
        (resources_unsaid, "the node type cpu has no resources; add `resources: {CPU: 16}` there, or cpus to"),
        (lambda found: (found.clear(), found.update(apiVersion="ray.io/v1")), "incomplete Ray cluster file"),
        (lambda found: (found.clear(), found.update(services={})), "not a Ray cluster file"),
    ],
)
def test_a_mistake_in_the_cluster_file_is_one_line(files, capfd, change, said):
    with pytest.raises(UserError, match=said) as refused:
        files(change)
    assert "\n" not in str(refused.value) and "cluster.yaml" in str(refused.value)
    assert capfd.readouterr() == ("", ""), "Ray prints before it gives up"


@pytest.mark.parametrize("text", ["", "[]", "3", "a: [", "\x00", "- a\n- b"])
def test_what_is_no_cluster_file_is_one_line(tmp_path, text):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"some.yaml: no") as refused:
        read_cluster(str(path), read_prices(str(ROOT / "prices.toml")))
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_cluster(str(tmp_path), read_prices(str(ROOT / "prices.toml")))


def test_machines_of_ones_own_are_a_cluster_too(tmp_path):
    lab = {
        "cluster_name": "lab",
        "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"]},
    }
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(lab))
    found = read_cluster(str(tmp_path / "lab.yaml"), read_prices(str(ROOT / "prices.toml")))
    (machines,) = found.workers
    assert (machines.name, machines.cpus, machines.gpus) == ("local.cluster.node", 16, 1)
    assert (machines.least, machines.most, found.most) == (2, 2, 2)


@pytest.mark.parametrize(
    ("node", "is_spot"),
    [
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, True),
        ({"scheduling": [{"preemptible": True}]}, True),
        ({"scheduling": {"provisioningModel": "SPOT"}}, True),
        ({"azure_arm_parameters": {"priority": "Spot"}}, True),
        ({"cloud.google.com/gke-spot": "true"}, True),
        ({"karpenter.sh/capacity-type": "on-demand"}, False),
        ({"scheduling": [{"preemptible": False}]}, False),
        ({"InstanceType": "spotless"}, False),
    ],
)
def test_spot_is_known_in_the_words_of_each_cloud(node, is_spot):
    assert spot(node) is is_spot


def test_the_repositorys_own_files_go_together_and_the_command_prints_them(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "GPU", tmp_path / "none.json")
    where = ["--storage", str(tmp_path), "--cluster", str(ROOT / "cluster.yaml"), "--prices", str(ROOT / "prices.toml")]
    shown = CliRunner().invoke(cli.app, ["plan", "line/table1", "line/figure1", *where])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^ *line/table1 +6 +8 ", shown.output, re.MULTILINE)
    assert "cpu (c7i.4xlarge)" in shown.output and "not known: no run of this plan" in shown.output
    monkeypatch.chdir(tmp_path)  # no prices.toml: the package's
    again = CliRunner().invoke(cli.app, ["plan", "line/table1", "line/figure1", *where[:4]])
    assert "cpu (c7i.4xlarge)" in again.stdout and again.stderr.startswith("prices: examples of /")
    Path("prices.toml").write_text('currency = ""')
    own = CliRunner().invoke(cli.app, ["plan", "line/table1", *where[:4]])
    assert isinstance(own.exception, UserError) and str(own.exception).startswith("prices.toml: currency must be")
    missing = CliRunner().invoke(cli.app, ["plan", "line/table1", *where[:4], "--prices", str(tmp_path / "no.toml")])
    assert isinstance(missing.exception, UserError) and "name a file by --prices" in str(missing.exception)


LONG, SHORT = 100, 2  # epochs


def finish(storage, factor, *, device="", stack=1, **changes):
    """Leave a finished run that took so many times the seconds of the task's estimate."""
    config = override(Config(), changes)
    folder = RunFolder.of(storage, LINE, config)
    info = {"points": 64, "digest": "64 points"}
    folder.begin(config, LINE.version, {"device": device or device_name(), "stack": stack, "data": info})
    weights = {str(config.epochs): "digest"}
    seconds = factor * LINE.cost(config)
    folder.folder.write_json(
        "result.json", {"metrics": {}, "data": info["digest"], "weights": weights, "seconds": seconds}
    )


def learnt(storage, epochs=LONG):
    table = replace(TABLE, rows=[Row(label="next", overrides={"epochs": epochs, "seed": 99}, view={})], over={})
    return learn(compile_plan({"line/t": (LINE, table)}, storage)).get("line")


def test_the_median_of_runs_counts(storage):
    for seed, factor in enumerate((2.0, 3.0, 40.0)):
        assert learnt(storage) is None  # too few
        finish(storage, factor, epochs=LONG, seed=seed)
    assert learnt(storage) == Learnt(pytest.approx(3.0), 3)


def test_short_runs_say_nothing_of_long_ones(storage):
    for seed in range(5):
        finish(storage, 100.0, epochs=SHORT, seed=seed)  # nearly all of it is the start
    assert learnt(storage) is None and learnt(storage, SHORT).factor == pytest.approx(100.0)
    for seed in range(3):
        finish(storage, 2.0, epochs=LONG, seed=seed)
    assert learnt(storage) == Learnt(pytest.approx(2.0), 3)


def test_runs_of_other_devices_and_of_stacks_do_not_count(storage):
    for seed in range(3):
        finish(storage, 2.0, epochs=LONG, seed=seed, device="another")
        finish(storage, 2.0, epochs=LONG, seed=10 + seed, stack=4)
    assert learnt(storage) is None
