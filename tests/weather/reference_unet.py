"""The 3D U-Net once more, as a function of a state dict: an oracle for evaluation mode.

It walks the names of the weights, knows no modules, and finds out from the names alone which variant they belong to.
"""

import numpy as np
import torch
import torch.nn.functional as F

SLOPE = 11 / 48  # the mean of RReLU's 1/8 and 1/3


def normalise(state, name, x):
    if f"{name}.weight" in state:
        mean, variance, weight, bias = (
            state[f"{name}.{part}"].view(1, -1, 1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias
    mean = x.mean((2, 3, 4), keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean((2, 3, 4), keepdim=True) + 1e-5)


def convolve(state, name, x):
    weight = state[f"{name}.weight"]
    return F.conv3d(x, weight, state.get(f"{name}.bias"), padding=weight.shape[2] // 2)


def pool(x):
    for dim in (2, 3, 4):
        pairs = torch.arange(0, x.shape[dim], 2)
        first, second = x.index_select(dim, pairs), x.index_select(dim, (pairs + 1).clamp(max=x.shape[dim] - 1))
        x = torch.maximum(first, second)
    return x


def resize(x, shape):
    """Trilinear: an average by a matrix along each axis, half-pixel centres, clamped at the borders."""
    for dim, length in zip((2, 3, 4), shape, strict=True):
        old = x.shape[dim]
        place = np.clip((np.arange(length) + 0.5) * old / length - 0.5, 0, old - 1)
        matrix = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(old)))
        x = torch.tensordot(x, torch.tensor(matrix, dtype=x.dtype), ([dim], [1])).movedim(-1, dim)
    return x


def attend(state, name, skip, gate):
    kernel = state[f"{name}.theta.weight"]
    theta = F.conv3d(skip, kernel, stride=kernel.shape[2])
    hidden = (theta + resize(convolve(state, f"{name}.phi", gate), theta.shape[2:])).clamp(min=0)
    share = 1 / (1 + torch.exp(-convolve(state, f"{name}.psi", hidden)))
    return normalise(state, f"{name}.w.1", convolve(state, f"{name}.w.0", resize(share, skip.shape[2:]) * skip))


def double(state, name, x):
    if f"{name}.conv.weight" in state:
        return convolve(state, f"{name}.conv", resize(x, [2 * length for length in x.shape[2:]]))
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    batch, _, time, rows, columns = x.shape
    blocks = torch.einsum("bithw,ioxyz->botxhywz", x, weight)  # kernel 2, stride 2: blocks do not overlap
    return blocks.reshape(batch, -1, 2 * time, 2 * rows, 2 * columns) + bias.view(1, -1, 1, 1, 1)


def forward(state, x, activation="relu"):
    """Logits (B, L, S, S) of images (B, 11, T, S, S)."""

    def act(y):
        return torch.where(y > 0, y, (0.0 if activation == "relu" else SLOPE) * y)

    levels = len({name.split(".")[1] for name in state if name.startswith("down_convs")})
    features = []
    for level in range(levels):
        if level:
            x = pool(x)
        for conv, norm in (("conv1", "norm0"), ("conv2", "norm1")):
            x = act(normalise(state, f"down_convs.{level}.{norm}", convolve(state, f"down_convs.{level}.{conv}", x)))
        features.append(x)
    for step, skip in enumerate(features[-2::-1]):
        name = f"up_convs.{step}"
        up = double(state, f"{name}.upconv", x)[:, :, : skip.shape[2], : skip.shape[3], : skip.shape[4]]
        up = act(normalise(state, f"{name}.norm0", up))
        if f"{name}.attention.psi.weight" in state:
            skip = attend(state, f"{name}.attention", skip, x)
        x = torch.cat([up, skip], 1)
        for conv, norm in (("conv1", "norm1"), ("conv2", "norm2")):
            x = act(normalise(state, f"{name}.{norm}", convolve(state, f"{name}.{conv}", x)))
    head = state["reduce_channels.weight"].flatten(1).view(-1, x.shape[1], x.shape[2])  # channel-major
    return torch.einsum("bcthw,lct->blhw", x, head) + state["reduce_channels.bias"].view(1, -1, 1, 1)
