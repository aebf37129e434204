"""A video vision transformer with a factorised encoder (section 2.3; Arnab et al. 2021, model 2).

One transformer reads each image by itself, a second one the images' class tokens, and the last class token becomes one
small picture for each lead time, which is enlarged. Sizes that the paper does not give are the reference's: heads as
wide as dim / heads, no bias for queries, keys and values, feed-forward layers four times as wide, a layer normalization
after either transformer, no dropout. They give its 37,466,448 weights at dim 400 and 15,724,320 at dim 256 (252 x 252
pixels, 4 images, 32 lead times).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from retable.tasks.weather.config import Vivit
from retable.tasks.weather.w4c.preprocess import CHANNELS


class Attention(nn.Module):
    """Multi-head self-attention; `torch.nn.MultiheadAttention` cannot leave out only the bias of the inputs."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: Float[Tensor, "batch token dim"]) -> Float[Tensor, "batch token dim"]:
        """Apply attention of every token to all tokens."""
        parts = self.queries_keys_values(tokens).unflatten(2, (3, self.heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.out(F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention, then a feed-forward network with GELU; each is normalised before and added to its input."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(dim), Attention(dim, heads))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, tokens: Float[Tensor, "batch token dim"]) -> Float[Tensor, "batch token dim"]:
        """Refine the tokens."""
        tokens = tokens + self.attention(tokens)
        refined: Tensor = tokens + self.feed_forward(tokens)
        return refined


def transformer(dim: int, depth: int, heads: int) -> nn.Sequential:
    """Make `depth` blocks and the final layer normalization."""
    return nn.Sequential(*(Block(dim, heads) for _ in range(depth)), nn.LayerNorm(dim))


REFERENCE = {
    r"pos_embedding": "positions",
    r"space_token": "space_token",
    r"temporal_token": "time_token",
    r"to_patch_embedding\.1\.(weight|bias)": r"embed.\1",
    r"time_pred\.(weight|bias)": r"head.\1",
    r"out_conv\.(weight|bias)": r"refine.\1",
    r"(space|temporal)_transformer\.layers\.(\d+)\.0\.norm\.(.+)": r"\1.\2.attention.0.\3",
    r"(space|temporal)_transformer\.layers\.(\d+)\.0\.fn\.to_qkv\.(.+)": r"\1.\2.attention.1.queries_keys_values.\3",
    r"(space|temporal)_transformer\.layers\.(\d+)\.0\.fn\.to_out\.0\.(.+)": r"\1.\2.attention.1.out.\3",
    r"(space|temporal)_transformer\.layers\.(\d+)\.1\.norm\.(.+)": r"\1.\2.feed_forward.0.\3",
    r"(space|temporal)_transformer\.layers\.(\d+)\.1\.fn\.net\.0\.(.+)": r"\1.\2.feed_forward.1.\3",
    r"(space|temporal)_transformer\.layers\.(\d+)\.1\.fn\.net\.3\.(.+)": r"\1.\2.feed_forward.3.\3",
    r"(space|temporal)_transformer\.norm\.(.+)": r"\1.{depth}.\2",
}
"""The names that the authors' ViViT (rishikksh20/ViViT-pytorch) gives its weights, and ours."""


def from_reference(state: Mapping[str, Tensor], model: Vivit) -> dict[str, Tensor]:
    """Return the authors' weights by our names; entries of other names keep theirs.

    Their patches are cut before a linear layer, rows, columns and channels in this order; here a convolution does both.
    """
    renamed = {}
    for name, value in state.items():
        ours = next(
            (made for pattern, template in REFERENCE.items() if (made := _renamed(pattern, template, name))), name
        )
        ours = ours.replace("{depth}", str(model.depth)).replace("temporal.", "time.")
        if ours == "embed.weight" and value.shape[1:] == (model.patch**2 * len(CHANNELS),):
            value = value.reshape(-1, model.patch, model.patch, len(CHANNELS)).permute(0, 3, 1, 2)
        renamed[ours] = value[None] if name == "space_token" and value.ndim == 3 else value
    return renamed


def _renamed(pattern: str, template: str, name: str) -> str:
    match = re.fullmatch(pattern, name)
    return match.expand(template) if match else ""


class VivitForecaster(nn.Module):
    """Reads T satellite images of `size` x `size` pixels and gives L logits for each pixel of the same grid.

    Images are brought to the next multiple of the patch by nearest neighbours, as in the reference.
    """

    def __init__(self, model: Vivit, size: int, inputs: int, forecast: int) -> None:
        super().__init__()
        dim, patches = model.dim, math.ceil(size / model.patch)
        self.size, self.forecast, self.inner_size = size, forecast, patches * model.patch
        self.side = math.isqrt(dim)
        self.enlarge = "bilinear" if model.enlarge == "linear" else "nearest"
        self.embed = nn.Conv2d(len(CHANNELS), dim, model.patch, stride=model.patch)
        self.positions = nn.Parameter(torch.randn(1, inputs, 1 + patches**2, dim))
        self.space_token = nn.Parameter(torch.randn(1, 1, 1, dim))
        self.space = transformer(dim, model.depth, model.heads)
        self.time_token = nn.Parameter(torch.randn(1, 1, dim))
        self.time = transformer(dim, model.depth, model.heads)
        self.head = nn.Linear(dim, forecast * dim)
        self.refine = nn.Conv2d(forecast, forecast, 3, padding=1)

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"]
    ) -> Float[Tensor, "batch lead row column"]:
        """Encode each image, then their sequence, and unfold its class token."""
        batch, _, inputs, _, _ = images.shape
        frames = F.interpolate(images.transpose(1, 2).flatten(0, 1), (self.inner_size, self.inner_size), mode="nearest")
        patches = self.embed(frames).flatten(2).transpose(1, 2).unflatten(0, (batch, inputs))
        tokens = torch.cat((self.space_token.expand(batch, inputs, -1, -1), patches), 2) + self.positions
        summaries = self.space(tokens.flatten(0, 1))[:, 0].unflatten(0, (batch, inputs))
        summary = self.time(torch.cat((self.time_token.expand(batch, -1, -1), summaries), 1))[:, 0]
        pictures = self.head(summary).unflatten(1, (self.forecast, self.side, self.side))
        logits: Tensor = self.refine(F.interpolate(pictures, (self.size, self.size), mode=self.enlarge))
        return logits
