"""PaSST (Koutini et al. 2022): a vision transformer over patches of a mel spectrogram, some left out in training.

Parameters have the names and shapes of the published checkpoints (kkoutini/PaSST), without the two classifier heads,
which retrieval does not use.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from retable.tasks.audio.config import BANDS, Passt

PATCH = 16
"""Mel bands, and frames, of a patch."""


def grid(config: Passt) -> tuple[int, int]:
    """Return for how many rows (frequency) and columns (time) of patches there are positions."""
    return (BANDS - PATCH) // config.stride + 1, config.frames // config.stride


def columns_of(frames: int, stride: int) -> int:
    """Return how many columns of patches a spectrogram has; 0 where it is shorter than a patch."""
    return max(0, (frames - PATCH) // stride + 1)


class PasstNetwork(nn.Module):
    """Patches with separate positions in frequency and time, a class and a distillation token, timm's blocks.

    Patchout happens in training mode only; its draws come from torch's generator of the CPU. A spectrogram shorter than
    the positions takes the first of them, in training too: so does passt_hear21, while PaSST's own training draws an
    offset.
    """

    def __init__(self, config: Passt) -> None:
        from timm.models.vision_transformer import Block  # slow to import

        super().__init__()
        self.config, self.width = config, config.width
        rows, columns = grid(config)
        normalisation = partial(nn.LayerNorm, eps=1e-6)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.new_pos_embed = nn.Parameter(torch.zeros(1, 2, config.width))
        self.freq_new_pos_embed = nn.Parameter(torch.zeros(1, config.width, rows, 1))
        self.time_new_pos_embed = nn.Parameter(torch.zeros(1, config.width, 1, columns))
        patches = nn.Conv2d(1, config.width, PATCH, stride=config.stride)
        self.patch_embed = nn.Sequential(OrderedDict(proj=patches))
        block = partial(Block, config.width, config.heads, qkv_bias=True, norm_layer=normalisation)  # type: ignore[arg-type]
        self.blocks = nn.Sequential(*(block() for _ in range(config.depth)))
        self.norm = normalisation(config.width)
        self._initialise()

    def _initialise(self) -> None:
        """Draw weights to train from scratch: positions as large as a patch's embedding, layers of their width's root.

        timm draws all of them a normal of 0.02. A patch's embedding is larger by far, so that the first normalisation
        leaves little of its row, and which band is loud can hardly be told at first. A linear reading of an untrained
        network of width 64 gives 88 % of the mean mel spectrum's variance with ours, 69 % with 0.07 for all.
        """
        spread = 1 / math.sqrt(self.width)
        for token in (self.cls_token, self.dist_token, self.new_pos_embed):
            nn.init.trunc_normal_(token, std=spread)
        for positions in (self.freq_new_pos_embed, self.time_new_pos_embed):
            nn.init.trunc_normal_(positions)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=spread)
                nn.init.zeros_(module.bias)

    def forward(self, x: Float[Tensor, "batch 1 band frames"]) -> Float[Tensor, "batch width"]:
        """Encode normalised log-mel of 128 bands: the mean of both tokens after the last normalisation.

        Raises:
            ValueError: where there are more columns of patches than positions.
        """
        patches = self.patch_embed(x)
        columns = patches.shape[3]
        if columns > self.time_new_pos_embed.shape[3]:
            raise ValueError(f"{columns} columns of patches, positions for {self.time_new_pos_embed.shape[3]}")
        patches = patches + self.time_new_pos_embed[..., :columns] + self.freq_new_pos_embed
        tokens = self._leave_out(patches)
        first, second = (
            (token + position).expand(len(x), -1, -1)
            for token, position in zip(
                (self.cls_token, self.dist_token), torch.split(self.new_pos_embed, 1, 1), strict=True
            )
        )
        tokens = torch.cat((first, second, tokens), 1)
        encoded: Tensor = self.norm(self.blocks(tokens))[:, :2].mean(1)
        return encoded

    def _leave_out(self, patches: Float[Tensor, "batch width row column"]) -> Float[Tensor, "batch token width"]:
        """Flatten patches to tokens; in training, without some columns, some rows, then some single patches."""
        if not self.training:
            return patches.flatten(2).transpose(1, 2)
        patches = _keep(patches, 3, self.config.patchout_time)
        patches = _keep(patches, 2, self.config.patchout_frequency)
        return _keep(patches.flatten(2).transpose(1, 2), 1, self.config.patchout)


def _keep(x: Tensor, axis: int, left_out: int) -> Tensor:
    """Leave out positions of an axis at random, the same for the whole batch; the others keep their order."""
    if not left_out:
        return x
    kept = torch.randperm(x.shape[axis])[left_out:].sort().values
    return x.index_select(axis, kept.to(x.device))
