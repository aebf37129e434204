"""The table and figures against the paper's, and what each scale makes of them."""

import csv

import pytest

from retable.platform.config import fingerprint, override
from retable.platform.models.zoo import digest
from retable.platform.spec.space import find_space, point_config
from retable.platform.spec.table import Measurement, Row, expand
from retable.platform.spec.task import config_at, scaled
from retable.platform.store.storage import Storage
from retable.tasks.style import TASK, figures
from retable.tasks.style.apply import timing
from retable.tasks.style.apply.optimise import ImageOptimisation
from retable.tasks.style.config import Alexnet, Config, OptimiseImage, Vgg16, Vgg19, View, ZooNetwork
from retable.tasks.style.files import assets, images
from retable.tasks.style.learner import cost
from retable.tasks.style.networks import backbones, weights
from retable.tasks.style.tables import IMAGE, UHD
from tests.table_results import results_of

TABLES = TASK.tables()
SCALES = TASK.scales()
SPREAD = ("seconds_per_evaluation", "seconds_per_evaluation_low", "seconds_per_evaluation_high")


def needs(name, scale, label=None):
    """Return every replicate of a table's rows that are run, or of one row."""
    table = scaled(TABLES[name], SCALES[scale])
    rows = [row for row in table.rows if not row.absent and label in (None, row.label)]
    return [(row, need) for row in rows for need in expand(table, row, Config(), View())]


def trainings(scale, names=TABLES):
    """Return the configs that are trained at a scale, each once."""
    found = [need.config for name in names for row, need in needs(name, scale) if isinstance(row, Row)]
    return {fingerprint("style", TASK.version, config): config for config in found}


def test_published_values_are_the_papers(shared):
    with open(shared / "papers/tables/style_table1.csv") as file:
        lines = [tuple(float(value) for value in line.values()) for line in csv.DictReader(file)]
    rows = [row for row in TABLES["table1"].rows if row.published]
    assert [(row.overrides["method.size"], *row.published.values()) for row in rows] == lines


def test_published_speedups_are_the_ratios_of_published_seconds():
    for row in TABLES["table1"].rows:
        if row.published:
            alexnet, vgg, network, low, high = row.published.values()
            assert alexnet / network == pytest.approx(low, abs=1) and vgg / network == pytest.approx(high, abs=1)


def test_seconds_of_version_1_are_those_of_a_row_of_version_1():
    assert IMAGE["epochs"] * IMAGE["steps"] == timing.EVALUATIONS


def test_a_line_of_the_table_has_every_column_and_ratios_of_its_seconds(monkeypatch):
    seconds = {Alexnet: 0.1, Vgg19: 0.5}
    asked = []

    def evaluation(config, budget):
        value = seconds[type(config.method.backbone)]
        asked.append((config.method.size, config.method.objective.convention))
        return dict(zip(SPREAD, (value, value * 0.9, value * 1.2), strict=True))

    def image(config, shape, budget, photographs, source):
        asked.append((shape, config.method))
        name = "seconds_per_image"
        return {name: 0.2, f"{name}_low": 0.16, f"{name}_high": 0.25, "gpu": 0.0, "photographs": float(photographs)}

    monkeypatch.setattr(timing, "seconds_per_evaluation", evaluation)
    monkeypatch.setattr(timing, "seconds_per_image", image)
    row, need = needs("table1", "smoke", "256 x 256")[0]
    found = row.measure(need.config, 7)
    assert asked == [(256, "relative"), (256, "relative"), ((256, 256), Config().method)]
    assert [found[column.metric] for column in TABLES["table1"].columns] == pytest.approx([30, 150, 0.2, 150, 750, 7])
    assert (found["vgg_over_alexnet"], found["gpu"]) == (pytest.approx(5), 0.0)
    assert (found["speedup_vgg_low"], found["speedup_vgg_high"]) == pytest.approx((135 / 0.25, 180 / 0.16))
    large, need = needs("table1", "paper", UHD.label)[0]
    assert large.measure(need.config)["network_seconds"] == 0.2 and asked[-1][0] == (2480, 4032)


def test_version_2_is_timed_over_as_many_photographs_as_a_scale_says():
    names = {
        "smoke": ("generated", 3),
        "quick": ("generated", 3),
        "small": ("generated", 10),
        "paper": ("coco2017", 100),
    }
    for scale, wanted in names.items():
        row, need = needs("table1", scale, "256 x 256")[0]
        assert (need.config.data, row.arguments["photographs"]) == wanted and row.reads_data
        assert scale == "paper" or f"timed over {wanted[1]} photographs" in scaled(TABLES["table1"], SCALES[scale]).note
    assert "100 test photographs" in TABLES["table1"].note


PAPERS = ["table1", *(f"figure{number}" for number in range(1, 9))]


def test_the_paper_has_one_table_and_eight_figures():
    assert list(TABLES) == [*PAPERS, "starts"]
    assert all(row.published == {} for name, table in TABLES.items() for row in table.rows if name != "table1")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TABLES)
def test_every_row_expands_to_valid_work(name, scale):
    found = needs(name, scale)
    assert bool(found) == (scale != "quick" or name in ("table1", "figure1", "figure2", "figure3", "figure7"))
    for row, need in found:
        assert isinstance(row, Measurement) == (need.view is None)
        assert need.view is None or need.view.epoch == need.config.epochs
        assert set(need.config.style) <= set(assets.paintings())
        contents = [need.config.method.content] if isinstance(need.config.method, OptimiseImage) else []
        assert set(contents or (need.view.content if need.view else ())) <= {*assets.photographs(), assets.LARGE}
        assert scale == "paper" or need.config.data == "generated"


def test_the_paper_scale_is_the_published_setting():
    for config in trainings("paper", PAPERS).values():
        if isinstance(config.method, OptimiseImage):
            assert (config.method.size, config.epochs * config.steps) == (512, 300)
            assert config.method.backbone.weights == "imagenet" and config.method.backbone.normalise
            assert config.method.objective.convention == "gatys" and config.method.start == "content"
        else:
            assert config == Config()
    sizes = {need.view.size for _, need in needs("figure8", "paper")}
    assert sizes == {3082}


def test_a_run_is_trained_once_for_all_figures_that_show_it():
    photographs, one = 3, 1
    wave_by_versions = photographs + one
    backbones, criteria, optimizers = 2 * photographs, 3 * photographs, 4 * photographs
    paintings = 2  # the third is a backbone's run
    assert len(trainings("paper", PAPERS)) == wave_by_versions + backbones + criteria + optimizers + paintings
    assert len(trainings("paper")) == len(trainings("paper", PAPERS)) + 2 * photographs, "from the painting, from noise"
    assert trainings("paper", ["figure2"]).keys() == trainings("paper", ["figure3"]).keys()
    assert trainings("paper", ["figure5"]).keys() == trainings("paper", ["figure6"]).keys()
    assert trainings("paper", ["figure8"]).keys() < trainings("paper", ["figure1"]).keys()


@pytest.mark.parametrize("scale", [name for name in SCALES if name != "quick"])
def test_a_scale_keeps_what_is_compared(scale):
    criteria = {row.label: need.config.method.objective.criterion for row, need in needs("figure4", scale)}
    assert {criteria[name] for name in figures.CRITERIA} == {"l1", "smooth_l1", "huber", "mse"}
    optimizers = {row.label: type(need.config.method.optimizer).__name__ for row, need in needs("figure5", scale)}
    assert list(optimizers.values()) == ["Lbfgs", "Adam", "Sgd", "Sgd"]
    kind = "Vgg19" if scale == "small" else "Vgg16"  # of which there is a small trained one
    assert {type(need.config.method.backbone).__name__ for _, need in needs("figure5", scale)} == {kind}


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_keeps_backbones_and_paintings(scale):
    backbones = [type(need.config.method.backbone).__name__ for row, need in needs("figure2", scale)]
    assert set(backbones) == {"Vgg19", "Alexnet"}
    trained = {need.config.method.backbone.weights for _, need in needs("figure2", scale)}
    assert trained == {{"smoke": "random", "paper": "imagenet"}.get(scale, "small")}
    assert [need.config.style for _, need in needs("figure7", scale)] == [
        ("starry_night",),
        ("the_scream",),
        ("great_wave",),
    ]


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """Give a trained network for each backbone of the paper: VGG-19 pruned for both VGGs, SqueezeNet for AlexNet."""
    storage = Storage.open(tmp_path_factory.mktemp("weights"))
    files = {"vgg19": "vgg19_pruned16x_conv5_1.pth", "squeezenet": "squeezenet1_0_compressed.net"}
    found = {}
    for name, file in files.items():
        digest = weights.import_weights(shared / "weights/style" / file, storage)
        changes = {"method": "optimise_image", "method.backbone": name, "method.backbone.weights": digest}
        found[name] = backbones.build(override(Config(), changes).method.backbone, 0, storage)
    return {Vgg19: found["vgg19"], Vgg16: found["vgg19"], Alexnet: found["squeezenet"]}


def first_losses(config, network, **optimizer):
    """Return the losses of ten evaluations of a config on 96 pixels, with another network."""
    changes = {f"method.optimizer.{name}": value for name, value in optimizer.items()}
    config = override(config, {"method.size": 96, "epochs": 1, "steps": 10, **changes})
    content = images.read(assets.photographs()[config.method.content]).pixels
    paintings = [images.read(assets.paintings()[name]).pixels for name in config.style]
    job = ImageOptimisation(config, content, paintings, network, "cpu")
    for _ in range(10):
        job.step()
    return job.losses[:, 0]


def optimised(name):
    """Return the labels and configs of a figure's rows of version 1 for the paper's photograph."""
    found = [(row.label, need.config) for row, need in needs(name, "paper") if isinstance(row, Row)]
    methods = [config.method for _, config in found]
    chosen = [isinstance(method, OptimiseImage) and method.content == "mountain" for method in methods]
    return [pair for pair, keep in zip(found, chosen, strict=True) if keep]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"), [("figure1", 1), ("figure2", 2), ("figure4", 4), ("figure5", 4), ("figure7", 3)]
)
def test_losses_of_the_papers_rows_do_not_jump_in_their_first_ten_evaluations(name, rows, real):
    found = optimised(name)
    assert len(found) == rows
    for label, config in found:
        losses = first_losses(config, real[type(config.method.backbone)])
        jumps = losses.max() > 1.1 * losses[0]
        assert jumps == (label == "SGD"), label  # which "cannot provide a valid visual result" (section V.D)
        assert label == "SGD" or losses[-1] < 0.6 * losses[0], label


def test_lbfgs_jumps_without_a_line_search(real):
    config = dict(optimised("figure2"))["VGG-19"]
    losses = first_losses(config, real[Vgg19], line_search="none")
    assert losses.max() > 50 * losses[0]


@pytest.mark.parametrize("scale", SCALES)
def test_both_versions_of_figure_1_are_as_large(scale):
    sides = {
        need.config.method.size if isinstance(need.config.method, OptimiseImage) else need.view.size
        for _, need in needs("figure1", scale)
    }
    assert len(sides) == 1


@pytest.mark.parametrize(("scale", "minutes"), [("smoke", 4), ("quick", 1), ("small", 120)])
def test_reduced_scales_are_as_short_as_they_say(scale, minutes):
    assert sum(cost(config) for config in trainings(scale).values()) / 2 < 60 * minutes


def test_small_trains_both_backbones_pictures_and_a_network_that_can_pass_its_gate():
    found = trainings("small").values()
    networks = [config for config in found if not isinstance(config.method, OptimiseImage)]
    assert len(networks) == 1 and networks[0].epochs * networks[0].steps >= 6000
    assert all(
        config.method.size == 384 and config.epochs * config.steps == 300 for config in found if config not in networks
    )


def test_quick_trains_no_network_and_names_the_zoos_file():
    found = trainings("quick").values()
    methods = [config.method for config in found]
    assert all(config.epochs * config.steps == 1 for config in found if isinstance(config.method, ZooNetwork))
    (zoo,) = [method for method in methods if isinstance(method, ZooNetwork)]
    assert zoo == ZooNetwork(name="great_wave", digest=digest("style", "great_wave")) and len(zoo.digest) == 64
    assert len(methods) == 1 + 5, "the wave in its shape, two backbones, and two more paintings of figure 7"


@pytest.mark.parametrize("scale", ["smoke", "quick", "small"])
@pytest.mark.parametrize("name", TABLES)
def test_notes_say_what_a_scale_changes_and_leaves_out(name, scale):
    table = scaled(TABLES[name], SCALES[scale])
    assert table.note.startswith(TABLES[name].note)
    kinds = {type(need.config.method) for row, need in needs(name, scale) if isinstance(row, Row)}
    assert not kinds or "Settings of this scale: " in table.note
    assert not kinds or ("version 1 method." in table.note) == (OptimiseImage in kinds)
    assert all(row.label in table.note.split("Not at this scale")[-1] for row in table.rows if row.absent)


@pytest.mark.parametrize("name", TABLES)
def test_every_claim_names_rows_of_its_table(name):
    table = TABLES[name]
    empty = results_of(TABLES, {row.label: [] for row in table.rows})
    assert all(claim.check(empty).status == "not tested at this scale" for claim in table.claims)
    if name not in ("figure7",):
        assert table.claims


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["style", "style_weight"])
def test_every_point_of_the_search_spaces_is_a_valid_config_of_version_1(name, scale):
    space = find_space(name)
    base = config_at(TASK, scale, space.overrides)
    points = space.points()
    assert len(points) == {"style": 2 * 4 * 3 * 3, "style_weight": 6}[name]
    for point in points:
        config = point_config(base, space.overrides, point)
        assert isinstance(config.method, OptimiseImage) and config.method.size == 64
        assert config.method.backbone.normalise is False
        assert config.method.backbone.weights == "random"  # nothing to download
