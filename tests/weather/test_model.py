"""A network in its place: geometry, temporal shift, the reference's weights."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from retable.platform.config import CANONICAL, fingerprint, flatten, override
from retable.platform.errors import UserError
from retable.tasks.weather import TASK
from retable.tasks.weather.config import (
    AllDry,
    AllRain,
    Climatology,
    Config,
    Context,
    Retrieval,
    Swin,
    UNet,
    View,
    Vivit,
)
from retable.tasks.weather.model import build, convert_reference
from retable.tasks.weather.models.unet import UNetForecaster
from retable.tasks.weather.w4c.layout import HOLDOUT

SIZE, INPUTS, FORECAST, REGIONS = 24, 4, 8, ("boxi_0015", "roxi_0004")
SMALL = UNet(filters=2, levels=3)
NETWORKS = [
    SMALL,
    Swin(feature_size=12),
    Vivit(dim=16, depth=1, heads=2, patch=8),
    Context(filters=4, levels=2),
    Retrieval(filters=4),
    Climatology(),
    AllDry(),
    AllRain(),
]
QUICK = [model for model in NETWORKS if not isinstance(model, Swin)]  # Swin pads to 32 x 64 x 64
by_name = {"ids": lambda model: type(model).__name__}


def config(model=SMALL, **fields):
    return Config(model=model, inputs=INPUTS, forecast=FORECAST, **fields)


def make(model=SMALL, seed=0, size=SIZE, **fields):
    torch.manual_seed(seed)
    return build(config(model, **fields), size, REGIONS).eval()


def images(batch=2, size=SIZE):
    return torch.randn(batch, 11, INPUTS, size, size), torch.arange(batch) % len(REGIONS)


class Given(nn.Module):
    """Stands in for a network: says what it was given."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits


@pytest.mark.parametrize("model", QUICK, **by_name)
@pytest.mark.parametrize("crop", ["centre", "none"])
def test_every_network_forecasts_every_lead_time_and_pixel(model, crop):
    x, region = images()
    if crop == "none" and isinstance(model, Retrieval | Climatology | AllDry | AllRain):
        with pytest.raises(ValueError, match="baselines forecast the right place only"):
            make(model, crop=crop)
        return
    with torch.no_grad():
        logits = make(model, crop=crop).eval()(x, region)
    assert logits.shape == (2, FORECAST, SIZE, SIZE)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


@pytest.mark.parametrize("model", NETWORKS, **by_name)
@pytest.mark.parametrize("crop", ["centre", "none"])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize(("inputs", "forecast"), [(4, 8), (4, 6), (1, 3), (3, 5)])
def test_what_a_config_accepts_can_be_built(model, crop, shift, inputs, forecast):
    """Late errors are early: a config is refused when it is planned, and one that is not makes a forecaster."""
    fields = {"crop": crop, "temporal_shift": shift, "inputs": inputs, "forecast": forecast}
    try:
        made = Config(model=model, **fields)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
        baseline = isinstance(model, Retrieval | Climatology | AllDry | AllRain)
        assert (baseline and (crop == "none" or shift)) or (isinstance(model, Swin) and forecast % inputs)
        return
    assert not (isinstance(model, Swin) and forecast % inputs)
    build(made, SIZE, REGIONS)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"forecast": 33}, "forecast 33: w4c22 is laid out for at most 32"),
        ({"data": "generated-36", "inputs": 5}, "inputs 5: generated-36 is laid out for at most 4"),
        ({"model": "swin", "forecast": 30}, "forecast 30 is not a multiple of inputs 4"),
        ({"model": "climatology", "crop": "none"}, "crop none"),
        ({"model": "vivit", "model.heads": 7}, "heads 7 does not divide dim 400"),
        ({"holdout": -1}, "holdout -1 is below 0"),
        ({"gradient_clamp": -1.0}, "gradient_clamp -1.0 is below 0"),
        ({"seed": -1}, "seed -1 is below 0"),
        ({"optimizer.learning_rate": -1}, "learning_rate -1.0 is not above 0"),
        ({"optimizer.weight_decay": -1}, "weight_decay -1.0 is below 0"),
        ({"optimizer": "adabelief", "optimizer.learning_rate": 0}, "learning_rate 0.0 is not above 0"),
        ({"optimizer": "adabelief", "optimizer.epsilon": -1}, "epsilon -1.0 is below 0"),
        ({"loss.positive_weight": -1}, "positive_weight -1.0 is below 0"),
        ({"loss": "dice_focal", "loss.positive_weight": -1}, "positive_weight -1.0 is below 0"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_planned(changes, line):
    with pytest.raises(UserError, match=line):
        override(Config(), changes)
    assert override(Config(), {"data": "mine", "forecast": 40}).forecast == 40  # such data may have it
    assert override(Config(), {"loss.positive_weight": "training_set"}).loss.positive_weight == "training_set"
    with pytest.raises(UserError, match="epoch -1 is below 0"):
        override(View(), {"epoch": -1})


def test_networks_take_regions_that_they_were_not_trained_on():
    assert make().number("roxi_0004") == 1 and make().number("roxi_0010") == 0
    with pytest.raises(UserError, match="a climatology knows the regions"):
        make(Climatology()).number("roxi_0010")


def enlarged(logits, size):
    """Bilinear enlargement of the centre, pixel by pixel."""
    first, count = 5 * size // 12, size // 6
    small = logits[0].numpy()[:, first : first + count, first : first + count]
    result = np.zeros((FORECAST, size, size), np.float32)
    for row, column in itertools.product(range(size), repeat=2):
        y, x = (min(max((place + 0.5) / 6 - 0.5, 0), count - 1) for place in (row, column))
        for i, j in itertools.product(range(count), repeat=2):
            result[:, row, column] += max(0, 1 - abs(y - i)) * max(0, 1 - abs(x - j)) * small[:, i, j]
    return torch.from_numpy(result)[None]


@pytest.mark.parametrize(("model", "size"), [(UNet(filters=1, levels=2), 12), (NETWORKS[1], 24), (NETWORKS[2], 24)])
def test_the_centre_is_cut_out_and_enlarged(model, size):
    forecaster = make(model, size=size)
    logits = torch.randn(1, FORECAST, size, size)
    forecaster.model = Given(logits)
    torch.testing.assert_close(forecaster(*images(1, size)), enlarged(logits, size))


@pytest.mark.parametrize("model", NETWORKS[:3], **by_name)
def test_without_crop_the_networks_grid_is_the_forecasts(model):
    forecaster = make(model, crop="none")
    logits = torch.randn(2, FORECAST, SIZE, SIZE)
    forecaster.model = Given(logits)
    assert torch.equal(forecaster(*images()), logits)


@pytest.mark.parametrize("model", [SMALL, Context(filters=4, levels=2)], ids=["unet", "context"])
@pytest.mark.parametrize("crop", ["centre", "none"])
def test_temporal_shift_sums_over_lead_time(model, crop):
    x, region = images()
    plain, shifted = make(model, crop=crop), make(model, crop=crop, temporal_shift=True)
    if isinstance(model, Context):
        nn.init.normal_(plain.model.last.weight)
    shifted.load_state_dict(plain.state_dict())
    with torch.no_grad():
        raw, sums = plain(x, region), shifted(x, region)
    expected = [raw[:, 0]]
    for lead in range(1, FORECAST):  # t'_i = t'_(i-1) + t_i
        expected.append(expected[-1] + raw[:, lead])
    torch.testing.assert_close(sums, torch.stack(expected, 1))


def test_a_context_network_starts_at_the_climate_with_temporal_shift_too():
    probability = make(Context(filters=4, levels=2), temporal_shift=True)(*images()).sigmoid()
    torch.testing.assert_close(probability, torch.full_like(probability, 0.08))


@pytest.mark.parametrize("model", NETWORKS[-4:], **by_name)
def test_temporal_shift_of_a_baseline_is_refused(model):
    with pytest.raises(ValueError, match=r"temporal_shift.*leave it out"):
        make(model, temporal_shift=True)


@pytest.mark.parametrize("shift", [False, True])
def test_training_starts_from_the_probability_of_rain_that_is_asked_for(shift):
    x, region = images()
    plain, dry = (make(temporal_shift=shift, initial_rain=share) for share in (0.5, 0.2))
    dry.load_state_dict(plain.state_dict())
    torch.testing.assert_close(dry(x, region), plain(x, region) + math.log(0.2 / 0.8))
    with pytest.raises(ValueError, match="starts from the climate by itself"):
        make(Context(), initial_rain=0.2)
    with pytest.raises(ValueError, match=r"initial_rain 1\.0 is outside"):
        make(initial_rain=1.0)


@pytest.mark.parametrize("size", [0, 6, 30, 250])
def test_a_size_without_a_central_sixth_is_refused(size):
    with pytest.raises(UserError, match=f"{size} x {size}.*multiple of 12"):
        build(config(), size, REGIONS)


@pytest.mark.parametrize("model", NETWORKS[:5], **by_name)
def test_channels_last_changes_the_layout_only(model):
    x, region = images()
    plain, last = make(model), make(model, channels_last=True)
    dims, wanted = (5, torch.channels_last_3d) if isinstance(model, UNet | Swin) else (4, torch.channels_last)
    weights = [value for value in last.parameters() if value.dim() == dims]
    assert weights
    assert all(value.is_contiguous(memory_format=wanted) for value in weights)
    if isinstance(model, Swin):
        return
    with torch.no_grad():
        torch.testing.assert_close(last(x, region), plain(x, region), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        UNet(filters=4, normalization="instance", dropout=0.0),
        pytest.param(Swin(feature_size=12, window=4), marks=pytest.mark.slow),
    ],
)
def test_one_image_has_the_same_gradients_where_channels_lie_last(model):
    """In 64 bits: in 32 a rectifier's input near 0 may fall to its other side, which changed gradients by 0.0015."""
    x, region = images(1)
    gradients = []
    for last in (False, True):
        torch.manual_seed(0)
        forecaster = make(model, channels_last=last).train().double()
        forecaster(x.double(), region).square().mean().backward()
        gradients.append({name: value.grad for name, value in forecaster.named_parameters() if value.grad is not None})
    plain, last = gradients
    whole = torch.cat([value.flatten() for value in plain.values()])
    other = torch.cat([last[name].flatten() for name in plain])
    assert (whole - other).norm() < 1e-9 * whole.norm()


def test_regions_are_told_apart_where_the_model_can():
    forecaster = make(Climatology())
    events = torch.zeros(2, FORECAST, SIZE, SIZE, dtype=torch.uint8)
    events[1] = 1
    forecaster.model.observe(events, torch.tensor([0, 1]))
    x, _ = images(3)
    logits = forecaster(x, torch.tensor([1, 0, 1]))
    assert torch.equal(logits[0], logits[2])
    assert (logits[0] > logits[1]).all()


@pytest.fixture
def reference():
    """A state dict of the reference's network, without prefix."""
    torch.manual_seed(7)
    return UNetForecaster(SMALL, SIZE, INPUTS, FORECAST).state_dict()


def wrapped(state):
    return {f"model.{name}": value for name, value in state.items()} | {"loss_fn.pos_weight": torch.ones(1)}


@pytest.mark.parametrize(
    "wrap",
    [dict, wrapped],
    ids=["network", "lightning module"],
)
def test_the_references_weights_load(reference, wrap):
    forecaster = make(crop="none")
    forecaster.load_state_dict(convert_reference(wrap(reference), config(crop="none"), SIZE, REGIONS))
    network = UNetForecaster(SMALL, SIZE, INPUTS, FORECAST).eval()
    network.load_state_dict(reference)
    x, region = images()
    assert torch.equal(forecaster(x, region), network(x))


@pytest.mark.parametrize("model", NETWORKS, **by_name)
@pytest.mark.parametrize("prefixed", [True, False])
def test_every_networks_names_survive(model, prefixed):
    own = make(model).state_dict()
    state = own if prefixed else {name.removeprefix("model."): value for name, value in own.items()}
    converted = convert_reference(state, config(model), SIZE, REGIONS)
    assert converted.keys() == own.keys()
    assert all(torch.equal(converted[name], own[name]) for name in own)


@pytest.mark.parametrize("wrap", [dict, wrapped])
def test_weights_that_do_not_fit_are_refused_by_name(reference, wrap):
    def convert(state):
        return convert_reference(wrap(state), config(), SIZE, REGIONS)

    missing = {name: value for name, value in reference.items() if name != "up_convs.1.norm2.bias"}
    with pytest.raises(ValueError, match=r"up_convs\.1\.norm2\.bias is missing"):
        convert(missing)
    with pytest.raises(ValueError, match=r"down_convs\.3\.conv1\.weight is not of this network"):
        convert(reference | {"down_convs.3.conv1.weight": torch.ones(1)})
    with pytest.raises(ValueError, match=r"reduce_channels\.weight has shape \(3, 8, 1, 1, 1\), not \(8, 8, 1, 1, 1\)"):
        convert(reference | {"reduce_channels.weight": torch.ones(3, 8, 1, 1, 1)})


def test_fields_that_came_later_leave_the_names_of_runs_as_they_were():
    later = {"holdout": 60, "initial_rain": 0.5, "left_out": (), "optimizer.fused": False}
    flat = flatten(Config())
    assert later.items() <= flat.items() and HOLDOUT == later["holdout"]
    text = CANONICAL.encode(["weather", TASK.version, {path: flat[path] for path in flat.keys() - later.keys()}])
    name = fingerprint("weather", TASK.version, Config())
    assert name == hashlib.sha256(text.encode()).hexdigest()[:16]
    chosen = {"holdout": 10, "initial_rain": 0.05, "left_out": ["boxi_0015"], "optimizer.fused": True}
    assert chosen.keys() == later.keys()
    for changes in ({path: value} for path, value in chosen.items()):
        assert fingerprint("weather", TASK.version, override(Config(), changes)) != name
