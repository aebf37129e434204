"""PaSST's size, tokens and patchout. Its outputs are compared in test_checkpoints.py."""

import pytest
import torch

from retable.tasks.audio.config import Passt
from retable.tasks.audio.encoders.passt import PasstNetwork, columns_of, grid

TINY = {"width": 8, "depth": 1, "heads": 2}


@pytest.mark.parametrize(
    ("stride", "frames", "depth", "published"),
    [
        (10, 998, 12, 85_341_696),
        (16, 1000, 12, 85_310_208),
        (10, 2000, 12, 85_419_264),
        (10, 3000, 12, 85_496_064),
        (10, 998, 7, 49_902_336),
    ],
)
def test_parameters_are_as_many_as_published(stride, frames, depth, published):
    with torch.device("meta"):
        network = PasstNetwork(Passt(stride=stride, frames=frames, depth=depth))
    assert sum(parameter.numel() for parameter in network.parameters()) == published
    assert len(network.state_dict()) == 153 - 12 * (12 - depth)  # six of 159 (99) are the heads'


@pytest.mark.parametrize(
    ("stride", "frames", "rows", "columns"),
    [(10, 1000, 12, 99), (10, 1500, 12, 149), (16, 1000, 8, 62), (16, 500, 8, 31)],
)
def test_patches_are_as_many_as_published(stride, frames, rows, columns):
    network = PasstNetwork(Passt(stride=stride, frames=2000, **TINY))
    assert network.patch_embed(torch.zeros(1, 1, 128, frames)).shape == (1, 8, rows, columns)
    assert columns_of(frames, stride) == columns and grid(network.config)[0] == rows


def tokens_of(network, x):
    seen = []
    hook = network.blocks.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    network(x)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("stride", "frames", "heard", "rows", "columns", "published"),
    [(16, 1000, 1000, 2, 15, 282), (10, 998, 1000, 3, 50, 441), (10, 2000, 1500, 3, 80, 621)],
)
def test_tokens_left_by_structured_patchout(stride, frames, heard, rows, columns, published):
    config = Passt(stride=stride, frames=frames, patchout_frequency=rows, patchout_time=columns, **TINY)
    network, x = PasstNetwork(config), torch.zeros(1, 1, 128, heard)
    assert tokens_of(network.train(), x).shape[1] == 2 + published
    everything = columns_of(heard, stride) * grid(config)[0]
    assert tokens_of(network.eval(), x).shape[1] == 2 + everything


def kept(network, x):
    """Which patches of each recording remain: (batch, kept) indices."""
    with torch.no_grad():
        network.eval()
        everything = tokens_of(network, x)[:, 2:]
        some = tokens_of(network.train(), x)[:, 2:]
    same = (everything[:, None] - some[:, :, None]).abs().amax(3) < 1e-5
    assert (same.sum(2) == 1).all()
    return same.int().argmax(2)


def test_patchout_leaves_a_grid_in_order_the_same_for_the_batch():
    torch.manual_seed(0)
    network = PasstNetwork(Passt(frames=320, patchout_frequency=3, patchout_time=8, **TINY))
    draws = [kept(network, torch.randn(3, 1, 128, 320)) for _ in range(6)]
    for indices in draws:
        assert (indices == indices[0]).all() and (indices[0].diff() > 0).all()
        rows, columns = {int(i) // 20 for i in indices[0]}, {int(i) % 20 for i in indices[0]}
        assert (len(rows), len(columns)) == (5, 12)
        assert indices[0].tolist() == [row * 20 + column for row in sorted(rows) for column in sorted(columns)]
    assert len({tuple(indices[0].tolist()) for indices in draws}) == 6


def test_patchout_without_structure():
    torch.manual_seed(0)
    network = PasstNetwork(Passt(frames=160, patchout_frequency=0, patchout_time=0, patchout=30, **TINY))
    x = torch.randn(2, 1, 128, 160)
    counts = torch.zeros(80)
    for _ in range(60):
        indices = kept(network, x)
        assert indices.shape == (2, 50) and (indices[0] == indices[1]).all() and (indices[0].diff() > 0).all()
        counts[indices[0]] += 1
    assert counts.min() > 20 and counts.max() < 55  # each of 80 patches is kept 37.5 times of 60 on average


def test_patchout_follows_torchs_generator():
    network = PasstNetwork(Passt(frames=160, patchout_frequency=2, patchout_time=3, patchout=4, **TINY))
    x, found = torch.randn(1, 1, 128, 160), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(network(x))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_too_long_a_spectrogram_is_refused():
    with pytest.raises(ValueError, match="11 columns of patches, positions for 10"):
        PasstNetwork(Passt(frames=160, patchout_time=0, **TINY))(torch.zeros(1, 1, 128, 176))


def test_every_parameter_is_trained():
    network = PasstNetwork(Passt(frames=160, patchout_frequency=0, patchout_time=0, **TINY))
    network(torch.randn(2, 1, 128, 160)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_an_untrained_network_tells_which_band_is_loud():
    """A linear reading of it tells the loud row of patches, which with timm's small positions it does not."""

    def error(scale):
        torch.manual_seed(0)
        config = Passt(frames=96, width=64, depth=2, heads=2, patchout_frequency=0, patchout_time=0)
        network = PasstNetwork(config).eval()
        with torch.no_grad():
            network.freq_new_pos_embed.mul_(scale)
            network.time_new_pos_embed.mul_(scale)
            row = torch.randint(8, (600,))
            x = -1.4 + 0.1 * torch.randn(600, 1, 8, 16, 96)
            x[torch.arange(600), 0, row] += 2 * torch.rand(600, 1, 1)  # anything from hardly heard to loud
            x = x.flatten(2, 3)
            features = torch.cat((network(x), torch.ones(600, 1)), 1).double()
        wanted = torch.nn.functional.one_hot(row, 8).double()
        weights = torch.linalg.lstsq(features[:400], wanted[:400]).solution
        guess = (features[400:] @ weights).argmax(1)
        return float((guess != row[400:]).double().mean())

    assert error(1.0) < 0.2 < 0.4 < error(0.02), (error(1.0), error(0.02))
