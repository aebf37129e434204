"""The three losses against naive loops over pixels, MONAI, and closed forms."""

import math

import monai.losses
import numpy as np
import pytest
import torch

from retable.tasks.weather.config import Bce, Config, DiceFocal, SoftIou
from retable.tasks.weather.losses import build_loss, mean

MASKED = 2
WEIGHT = 2.5
LOSSES = [Bce(), SoftIou(), DiceFocal(weigh="positives"), DiceFocal(weigh="whole")]
NAMES = ["bce", "soft_iou", "positives", "whole"]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
both_masks = pytest.mark.parametrize("mask", ["exclude", "zero"])


def function(loss, mask="exclude", weight=WEIGHT):
    return build_loss(Config(loss=loss, mask=mask), weight)


def sample(masked=0.3, seed=0, shape=(3, 2, 4, 5)):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, shape).astype(np.float32)
    events = (random.random(shape) < 0.3).astype(np.uint8)
    events[random.random(shape) < masked] = MASKED
    events[1][events[1] == 1] = 0  # a dry sample
    return torch.from_numpy(logits), torch.from_numpy(events)


def naive(loss, mask, logits, events):
    """A loop over samples and pixels in float64."""
    samples = []
    for i in range(len(logits)):
        pixels, inter, total, union = [], 0.0, 0.0, 0.0
        for x, event in zip(logits[i].ravel().tolist(), events[i].ravel().tolist(), strict=True):
            if event == MASKED and mask == "exclude":
                continue
            x, y = (0.0, 0) if event == MASKED else (x, event)
            p = 1 / (1 + math.exp(-x))
            if event == MASKED and isinstance(loss, SoftIou):
                p = 0.0
            inter, total, union = inter + p * y, total + p + y, union + p + y - p * y
            probability = p if y else 1 - p  # of what happened
            if isinstance(loss, Bce):
                pixels.append((WEIGHT if y else 1) * -math.log(probability))
            elif isinstance(loss, DiceFocal):
                weight = WEIGHT if y or loss.weigh == "whole" else 1
                pixels.append(weight * (1 - probability) ** 2 * -math.log(probability))
            else:
                pixels.append(0.0)
        overlap = 0.0
        if pixels and isinstance(loss, SoftIou):
            overlap = 1 - inter / union
        elif pixels and isinstance(loss, DiceFocal):
            overlap = 1 - (2 * inter + 1e-5) / (total + 1e-5)
        samples.append(overlap + (np.mean(pixels) if pixels else 0.0))
    return np.mean(samples)


@every_loss
@both_masks
@pytest.mark.parametrize("masked", [0.0, 0.4])
def test_values_equal_a_loop_over_pixels(loss, mask, masked):
    logits, events = sample(masked)
    expected = naive(loss, mask, logits.numpy(), events.numpy())
    assert function(loss, mask)(logits, events).item() == pytest.approx(expected, rel=1e-5)


@every_loss
@both_masks
def test_the_mean_over_workers_is_the_loss_of_the_joined_batch(loss, mask):
    logits, events = sample(shape=(4, 2, 4, 5))
    events[2] = MASKED  # costs nothing where masked pixels are left out, and still counts as a sample
    whole = function(loss, mask)(logits, events)
    halves = [function(loss, mask)(logits[half], events[half]) for half in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(whole, sum(halves) / 2)


@every_loss
@both_masks
@pytest.mark.parametrize("hidden", [7.0, -200.0, math.inf, math.nan])
def test_what_is_said_of_masked_pixels_has_no_effect(loss, mask, hidden):
    logits, events = sample()
    changed = torch.where(events == MASKED, hidden, logits).requires_grad_()
    value = function(loss, mask)(changed, events)
    torch.testing.assert_close(value, function(loss, mask)(logits, events))
    value.backward()
    assert (changed.grad[events == MASKED] == 0).all()
    assert (changed.grad[[0, 2]][events[[0, 2]] != MASKED] != 0).all()


@every_loss
def test_an_all_masked_batch_costs_nothing(loss):
    logits, events = sample()
    logits.requires_grad_()
    value = function(loss)(logits, torch.full_like(events, MASKED))
    value.backward()
    assert value.item() == 0
    assert (logits.grad == 0).all()


def test_zeroed_pixels_add_ln_2_and_shrink_gradients():
    logits, events = (tensor[:1] for tensor in sample())
    share = (events == MASKED).float().mean().item()
    grads = []
    for mask in ("exclude", "zero"):
        leaf = logits.clone().requires_grad_()
        grads.append((function(Bce(), mask)(leaf, events), leaf))
        grads[-1][0].backward()
    (exclude, full), (zero, shrunk) = grads
    assert zero.item() == pytest.approx((1 - share) * exclude.item() + share * math.log(2), rel=1e-5)
    torch.testing.assert_close(shrunk.grad, (1 - share) * full.grad)


@both_masks
def test_a_dry_sample_costs_1_in_soft_iou_and_teaches_nothing(mask):
    logits, events = sample(masked=0.1)
    dry = logits[1:2].clone().requires_grad_()
    value = function(SoftIou(), mask)(dry, events[1:2])
    value.backward()
    assert value.item() == 1
    assert (dry.grad == 0).all()


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("extreme", [-200.0, 200.0])
def test_extreme_logits_stay_finite(loss, extreme):
    _, events = sample()
    for target in (events, torch.zeros_like(events)):
        logits = torch.full(events.shape, extreme, requires_grad=True)
        value = function(loss)(logits, target)
        value.backward()
        assert value.isfinite()
        assert logits.grad.isfinite().all()


def test_perfect_forecasts_cost_nothing():
    _, events = sample(masked=0.2)
    events[1, 0, 0, 0] = 1
    logits = torch.where(events == 1, 60.0, -60.0)
    for loss in LOSSES:
        assert function(loss)(logits, events).item() == pytest.approx(0, abs=1e-6)


def test_dice_focal_is_monais():
    # The lead times are voxels of one channel, as in the reference: one Dice for each sample.
    logits, events = sample(masked=0)
    volumes, targets = logits[:, None], events[:, None].float()
    whole = monai.losses.DiceFocalLoss(sigmoid=True, lambda_focal=WEIGHT)(volumes, targets)
    torch.testing.assert_close(function(DiceFocal(weigh="whole"))(logits, events), whole)
    balanced = monai.losses.FocalLoss(alpha=WEIGHT / (1 + WEIGHT))(volumes, targets) * (1 + WEIGHT)
    positives = monai.losses.DiceLoss(sigmoid=True)(volumes, targets) + balanced
    torch.testing.assert_close(function(DiceFocal(weigh="positives"))(logits, events), positives)


def test_dice_focal_is_monais_where_zeroed_pixels_stay():
    logits, events = sample()
    known = events != MASKED
    volumes, targets = (logits * known)[:, None], (events * known)[:, None].float()
    whole = monai.losses.DiceFocalLoss(sigmoid=True, lambda_focal=WEIGHT)(volumes, targets)
    torch.testing.assert_close(function(DiceFocal(weigh="whole"), "zero")(logits, events), whole)


def reference_soft_iou(logits, events):
    """The competition's code in its order: the sigmoid first, then masked pixels of both are set to 0."""
    known = (events != MASKED).double()
    probability, rain = (0.5 * torch.tanh(logits.double() / 2) + 0.5) * known, (events == 1) * known
    both = (probability * rain).sum((1, 2, 3))
    return 1 - torch.nan_to_num(both / ((probability + rain).sum((1, 2, 3)) - both)).mean()


def test_soft_iou_zeroes_probabilities_where_the_reference_does():
    logits, events = sample()
    events[2] = MASKED  # costs 1 here, and nothing where masked pixels are left out
    leaf, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    value, expected = function(SoftIou(), "zero")(leaf, events), reference_soft_iou(theirs[:2], events[:2])
    assert value.item() == pytest.approx((2 * expected.item() + 1) / 3, rel=1e-6)
    assert value.item() == pytest.approx(reference_soft_iou(logits, events).item(), rel=1e-6)
    value.backward()
    expected.backward()
    torch.testing.assert_close(leaf.grad[:2] * 3, theirs.grad[:2] * 2)
    assert (leaf.grad[2] == 0).all()
    assert value.item() - function(SoftIou())(logits, events).item() == pytest.approx(1 / 3)


def test_soft_iou_is_monais_jaccard_but_for_its_smoothing():
    logits, events = sample(masked=0)
    theirs = monai.losses.DiceLoss(sigmoid=True, jaccard=True, smooth_nr=0, smooth_dr=1e-30)
    torch.testing.assert_close(function(SoftIou())(logits, events), theirs(logits[:, None], events[:, None].float()))


def test_weighted_cross_entropy_is_torchs():
    logits, events = sample(masked=0)
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(WEIGHT))(logits, events.float())
    torch.testing.assert_close(function(Bce())(logits, events), theirs)


@every_loss
def test_half_precision_logits_are_computed_in_float32(loss):
    logits, events = sample(shape=(3, 8, 32, 32))  # more pixels than float16 can count
    half = logits.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        value = function(loss)(half, events)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, function(loss)(half.float(), events))


def test_a_sample_counts_as_much_with_one_pixel_as_with_all():
    values = torch.tensor([[[3.0, 5.0]], [[1.0, 3.0]], [[7.0, 9.0]]])
    counted = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.0]]])
    assert float(mean(values, counted)) == pytest.approx((3 + 2 + 0) / 3)
