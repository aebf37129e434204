"""Predictions of a trained style: the pictures it makes, and another network's scores of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.platform.train.worker import best_device
from retable.tasks.style.apply.judge import errors, lattice
from retable.tasks.style.config import Config, OptimiseImage, TrainNetwork, View
from retable.tasks.style.data import painting, photograph, tests
from retable.tasks.style.files import images
from retable.tasks.style.learner import RATE, TRANSFORMER
from retable.tasks.style.networks.backbones import build
from retable.tasks.style.networks.tiling import stylise
from retable.tasks.style.networks.transformer import chosen, trained

JUDGED_SIZE = 512
"""Pictures are judged at most at this size: their longer side in pixels."""


def predict(config: Config, view: View, weights: Mapping[str, Tensor], source: Source, shard: str) -> dict[str, Array]:
    """Stylise the view's photographs with a trained network, or return the image that was optimised.

    Returns:
        `photograph/<name>` and `stylised/<name>`, of one size, and `painting/<name>`: uint8 (height, width, 3); of
        version 1 also `losses`, float32 (evaluations, 3): total, content and style.

    Raises:
        UserError: where the data set has no such picture.

    """
    arrays: dict[str, Array] = {f"painting/{name}": painting(source, name) for name in aims(config, view)}
    if isinstance(config.method, OptimiseImage):
        pixels = images.to_pixels(weights["image"])
        before = photograph(source, config.method.content)
        before = images.square(before, config.method.size) if config.method.shape == "square" else before
        made = {config.method.content: (images.fit(before, max(pixels.shape[:2])), pixels)}
        arrays["losses"] = weights["losses"].float().numpy()
    else:
        made = stylised(config, view, weights, source)
    for name, (before, pixels) in made.items():
        after = images.original_colours(pixels, before) if view.original_colours else pixels
        arrays[f"photograph/{name}"] = before
        arrays[f"stylised/{name}"] = images.mix(after, before, view.strength)
    return arrays


def stylised(
    config: Config, view: View, weights: Mapping[str, Tensor], source: Source
) -> dict[str, tuple[Array, Array]]:
    """Return each of the view's photographs and what the network makes of it, by name."""
    network = trained(config, weights)
    if network.architecture.styles > 1:
        network = chosen(network, config.style, aims(config, view)[0], "view.painting")
    network = network.to(best_device(apple=True))
    made = {}
    for name in view.content or tests(source):
        before = images.fit(photograph(source, name), view.size)
        after = stylise(network, images.to_tensor(before), config.precision)
        made[name] = (before, images.to_pixels(after.cpu()))
    return made


@torch.no_grad()
def evaluate(
    config: Config, view: View, summaries: Mapping[str, Mapping[str, Array]], source: Source
) -> dict[str, float]:
    """Return `style_error` and `content_error`, means over photographs, as the judge sees them; 0 is no difference.

    Of version 2 also `photograph_style_error`, that of the photographs as they are, and `lattice`, the worst (see
    `judge.lattice`) where results have 64 pixels each way: what a network is compared with before it counts as trained.

    Raises:
        UserError: where a photograph is too small for the judge, as a panorama is at the view's size.
    """
    arrays = summaries["all"]
    judge = build(view.judge, judge_seed(config, view), source.storage)
    names = [key.removeprefix("stylised/") for key in arrays if key.startswith("stylised/")]
    aimed = [arrays[f"painting/{style}"] for style in aims(config, view)]
    blend = config.blend if len(aimed) > 1 else ()
    made = {name: images.fit(pixels := arrays[f"stylised/{name}"], least(pixels)) for name in names}
    seen = []
    for name in names:
        try:
            seen.append(errors(judge, made[name], arrays[f"photograph/{name}"], aimed, blend))
        except UserError as error:
            raise UserError(f"photograph {name}: {error}, or name others in view.content") from error
    style, content = np.mean(seen, axis=0)
    scores = {"style_error": float(style), "content_error": float(content)}
    if isinstance(config.method, OptimiseImage):
        return scores
    before = [images.fit(arrays[f"photograph/{name}"], max(made[name].shape[:2])) for name in names]
    scores["photograph_style_error"] = float(np.mean([errors(judge, one, one, aimed, blend)[0] for one in before]))
    full_size = [arrays[f"stylised/{name}"] for name in names]  # reduced, a picture has no lattice
    if all(min(pixels.shape[:2]) >= 64 for pixels in full_size):
        scores["lattice"] = max(map(lattice, full_size))
    return scores


def judge_seed(config: Config, view: View) -> int:
    """Return the seed of the judge's random weights: 0, or another where the pictures were made with that network.

    Raises:
        UserError: where the judge is the trained network that they were made with.
    """
    judge, parts = view.judge, (config.method, getattr(config.method, "texture", None))
    used = [part.backbone for part in parts if part is not None and hasattr(part, "backbone")]
    if not any((type(one), one.weights) == (type(judge), judge.weights) for one in used):
        return 0
    if judge.weights != "random":
        raise UserError("view.judge: is the network that the pictures were made with; choose another")
    return int(config.seed == 0)


def aims(config: Config, view: View) -> tuple[str, ...]:
    """Return the paintings that a picture is to look like: all of them, or the one of a conditional network.

    Raises:
        UserError: where the view names one, and the network is not conditional.
    """
    if isinstance(config.method, TrainNetwork) and config.method.conditional:
        return (view.painting or config.style[0],)
    if view.painting:
        raise UserError(f"view.painting: {view.painting} is of a network with several styles; leave it out")
    return config.style


def least(pixels: Array) -> int:
    """Return the longer side at which a picture is judged."""
    return min(JUDGED_SIZE, int(max(pixels.shape[:2])))


def view_cost(config: Config, view: View) -> float:
    """Return seconds of one CPU core that a view takes, roughly."""
    pictures = len(view.content) or 6
    if isinstance(config.method, OptimiseImage):
        return 3.0
    size = view.size or 1024
    filters = config.method.filters if isinstance(config.method, TrainNetwork) else 32
    return 3 + pictures * TRANSFORMER * (filters / 32) ** 2 * size**2 / RATE
