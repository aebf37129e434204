"""Training: losses fall, and every option does what it says."""

from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.worker import Worker
from retable.tasks.weather.config import Config
from retable.tasks.weather.data import Batch, Windows
from retable.tasks.weather.learner import ForecastLearner, make_optimizer, positive_weight, validate
from retable.tasks.weather.metrics import scores, summarise
from tests.weather.toys import SMALL, config, make, run

WAIT = 120
PLAIN = {"model__normalization": "instance", "model__dropout": 0.0}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return make(tmp_path_factory.mktemp("weather") / "results")


def of(changes):
    """A config; the U-Net's own options are left out where another model is chosen."""
    base = {k: v for k, v in SMALL.items() if not (k.startswith("model") and "model" in changes)}
    base = {k: v for k, v in base.items() if not (k.startswith("optimizer") and "optimizer" in changes)}
    return override(Config(), base | {name.replace("__", "."): value for name, value in changes.items()})


def learner(storage, chosen):
    data = Windows(None, Source.of(storage, "weather/tiny"), [chosen])
    return ForecastLearner([chosen], data, Worker()), data


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"model": "context", "model__filters": 8, "model__levels": 2}, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_batch_can_be_learned_by_heart(storage, changes):
    taught, data = learner(storage, of({**changes, "model__dropout": 0.0} if not changes else changes))
    batch = next(iter(data.batches(0, 0, 0, 1)))
    losses = [float(taught.step(batch)["loss"]) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]


def test_gradients_are_clipped_by_value(storage):
    taught, data = learner(storage, of({"gradient_clamp": 1e-12}))
    taught.step(next(iter(data.batches(0, 0, 0, 1))))
    found = torch.cat([p.grad.flatten() for p in taught.model.parameters() if p.grad is not None])
    assert float(found.abs().max()) == pytest.approx(1e-12)


def test_sixteen_bit_is_close_to_thirty_two(storage):
    losses = []
    for precision in ("float32", "bfloat16", "float16"):
        taught, data = learner(storage, of({**PLAIN, "precision": precision}))
        losses.append([float(taught.step(batch)["loss"]) for batch in data.batches(0, 0, 0, 1)])
    assert losses[1] == pytest.approx(losses[0], rel=0.03) and losses[1] != losses[0]
    assert losses[2] == pytest.approx(losses[0], rel=0.01)


def test_a_fused_update_is_the_plain_one_but_for_its_last_bits():
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(9, 7)
        optimizer = make_optimizer(of({"optimizer__fused": fused}), model)
        for _ in range(5):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        assert bool(optimizer.param_groups[0]["fused"]) is fused
        found.append(model.weight.detach())
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-6)


def test_adabelief_honours_its_configuration(storage):
    taught, _ = learner(storage, of({"optimizer": "adabelief", "optimizer__learning_rate": 0.02}))
    (group,) = make_optimizer(taught.config, taught.model).param_groups
    assert (group["lr"], group["eps"], group["weight_decay"], group["betas"]) == (0.02, 1e-16, 0.0, (0.9, 0.999))


def test_the_weight_of_rain_comes_from_the_config_or_the_data():
    data = SimpleNamespace(positive_ratio=7.5)  # what it is of real data: `test_data.py`
    assert positive_weight(of({"loss": "bce", "loss__positive_weight": 3.0}), data) == 3.0
    assert positive_weight(of({"loss": "bce", "loss__positive_weight": "training_set"}), data) == 7.5
    assert positive_weight(of({"loss": "soft_iou"}), data) == 1.0


class Fixed:
    """A learner that forecasts rain on the left half of every map; its loss is 2 for each batch."""

    def __init__(self, chosen):
        self.config, self.worker = chosen, Worker()

    def share_buffers(self):
        pass

    def forecast(self, batch):
        logits = torch.full(batch.events.shape, -1.0)
        logits[..., :2] = 1.0
        return logits, batch.events

    def loss(self, logits, events):
        return torch.tensor(2.0)


class Maps:
    """Validation maps of 1 x 4 pixels at one lead time, two of a place in one batch and one in another."""

    validated = ("2019/a", "2019/b", "2020/a")

    def validation(self, rank, world):
        for events, shards in (
            ([[1, 0, 1, 0], [1, 1, 0, 2]], ("2019/a", "2019/b")),
            ([[0, 2, 1, 1], [0, 0, 0, 0]], ("2019/a", "2020/a")),
        ):
            maps = torch.tensor(events, dtype=torch.uint8)[:, None, None]
            yield Batch(torch.zeros(2), maps, maps[:, 0], torch.zeros(2), shards)


def test_validation_iou_pools_a_places_pixels_and_counts_places_without_a_hit_as_0():
    """By hand: 1 hit of 3 and 0 of 3 are 1/6 for 2019/a; 2 of 2 are 1 for 2019/b; 0 of 2 are 0 for 2020/a."""
    (found,) = validate(Fixed(of({})), Maps())
    assert found["validation_iou/2019/a"] == pytest.approx(1 / 6)
    assert (found["validation_iou/2019/b"], found["validation_iou/2020/a"]) == (1, 0)
    assert found["validation_iou"] == pytest.approx((1 / 6 + 1 + 0) / 3) and found["validation_loss"] == 2


def test_without_validation_nothing_is_said_of_it():
    class Nothing(Maps):
        validated = ()

        def validation(self, rank, world):
            return iter(())

    shared = []

    class Shared(Fixed):
        def share_buffers(self):
            shared.append(1)

    assert validate(Shared(of({})), Nothing()) == [{}]
    assert shared, "workers average their running statistics nevertheless"


def test_a_place_without_rain_or_forecast_counts_as_in_the_scores():
    """Neither rain nor forecast: 0, as in `metrics.scores` of the validation split, and not left out."""

    class Dry(Fixed):
        def forecast(self, batch):
            return torch.where(batch.events == 1, 1.0, -1.0), batch.events

    (found,) = validate(Dry(of({})), Maps())
    assert found["validation_iou"] == pytest.approx(2 / 3)
    events = {"validation/2019/a": [[1, 0, 1, 0], [0, 2, 1, 1]], "validation/2019/b": [[1, 1, 0, 2]]}
    events |= {"validation/2020/a": [[0, 0, 0, 0]]}
    summaries = {}
    for shard, rows in events.items():
        maps = np.array(rows, np.uint8)[:, None, None]
        summaries[shard] = summarise(np.where(maps == 1, 200, 0).astype(np.uint8), maps)
    assert scores(summaries, dict.fromkeys(summaries, 0.5), 2)["iou"] == pytest.approx(found["validation_iou"])


def test_climatology_counts_the_rain_of_an_epoch(storage):
    taught, data = learner(storage, of({"model": "climatology"}))
    rain, seen = np.zeros((2, 12, 12)), np.zeros((2, 12, 12))
    for batch in data.batches(0, 0, 0, 1):
        taught.step(batch)
        for k, region in enumerate(batch.region.tolist()):
            rain[region] += (batch.events[k].numpy() == 1).sum(0)
            seen[region] += (batch.events[k].numpy() != 2).sum(0)
    network = taught.model.model
    assert np.allclose(network.rainy, rain) and np.allclose(network.seen, seen)


def test_a_child_takes_its_parents_weights_and_keeps_its_own_new_ones(storage):
    source, _ = learner(storage, of({}))
    target, _ = learner(storage, of({"seed": 1}))
    target.load_weights([source.model.state_dict()])
    for name, value in source.model.state_dict().items():
        assert torch.equal(target.model.state_dict()[name], value)
    other, _ = learner(storage, of({"model": "context", "model__filters": 4, "model__levels": 2}))
    with pytest.raises(UserError, match="which this model has not"):
        other.load_weights([source.model.state_dict()])


def worker(rank, where, changes):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{where}/meet", timedelta(seconds=WAIT), rank=rank, world_size=2)
    try:
        run(Storage.open(f"{where}/results"), config(**changes), place=Worker(rank=rank, world=2))
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_two_workers_with_batch_norm_learn_nearly_what_one_does(tmp_path):
    changes = {"model__dropout": 0.0, "model__normalization": "batch"}
    make(tmp_path / "results")
    alone = run(make(tmp_path / "alone"), config(**changes))
    other = torch.multiprocessing.get_context("spawn").Process(target=worker, args=(1, str(tmp_path), changes))
    other.start()
    try:
        worker(0, str(tmp_path), changes)
        other.join(timeout=WAIT)
        assert other.exitcode == 0
    finally:
        other.kill()
    shared = RunFolder.of(Storage.open(tmp_path / "results"), find("weather"), config(**changes)).history()
    losses = [[row["loss"] for row in rows] for rows in (alone.history(), shared)]
    # each worker normalises its own half of the batch: close, and not equal
    assert losses[0] == pytest.approx(losses[1], rel=0.1) and losses[0] != losses[1]


def test_patience_without_validation_sequences_is_refused(storage):
    """Their score would be 0 for ever, and the first epoch the best."""
    made, data = learner(storage, config(patience=2, left_out=["roxi_0004"]))
    data._validation = {shard: () for shard in data._validation}
    with pytest.raises(UserError, match=r"patience: .* has no validation sequences.*set patience=0"):
        ForecastLearner([made.config], data, Worker())
