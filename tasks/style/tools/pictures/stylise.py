"""Styles that `--style` names: a network that stylises any photograph (version 2), or paintings (version 1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from retable.platform import api
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.store.storage import Storage
from retable.platform.train.worker import best_device
from retable.tasks.style.apply.optimise import EVALUATIONS, ImageOptimisation
from retable.tasks.style.config import Config, OptimiseImage, TrainNetwork
from retable.tasks.style.files import assets, images
from retable.tasks.style.files.images import Pixels
from retable.tasks.style.networks import backbones, transformer, weights
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import Precision, needed_bytes, stylise, stylise_tiled
from retable.tasks.style.networks.transformer import trained
from retable.tasks.style.tools.pictures import regions
from retable.tasks.style.tools.pictures.knobs import STYLE_SCALE
from retable.tasks.style.tools.pictures.memory import check_memory, free_bytes, image_bytes
from retable.tasks.style.tools.pictures.regions import Mask

Report = Callable[[float, int, str], None]
"""Told how much of the work is done, how much there is, and what is being done."""

NETWORKS = (".safetensors", ".pth", ".pt", ".model")
"""Suffixes of files that hold a network; `.model` is what pytorch/examples writes."""
BATCH_PIXELS = 2_000_000
"""Pictures of one size go through a network together, up to so many pixels in all."""
TILE = 1024
"""Side of tiles where a GPU does not hold a whole picture."""
SMALLEST = 32
"""Pixels of the shorter side of what is compared, at the least, where nothing else is said."""
UNTRAINED_WEIGHT = 50.0
"""Style weight with random weights, where nothing else is said."""
PRESETS: Mapping[str, Mapping[str, object]] = {
    "": {
        "method.objective.convention": "relative",  # one style weight is then right for every size and network
        "method.objective.content_layers": ["stage3"],
        "method.objective.style_layers": ["stage1", "stage2", "stage3"],
        "method.objective.style_weight": 5.0,
        "method.objective.variation_weight": 0.5,
    },
    "gatys": {
        "method.objective.convention": "gatys",
        "method.objective.content_weight": 1e-3,
        "method.objective.style_weight": 1.0,
        "method.start": "noise",
        "steps": 500,
    },
    "johnson": {
        "method.backbone": "vgg16",
        "method.backbone.normalise": False,
        "method.backbone.pooling": "max",
        "method.objective.convention": "sum",
        "method.objective.content_layers": ["relu2_2"],
        "method.objective.style_layers": ["relu1_2", "relu2_2", "relu3_3", "relu4_3"],
        "method.objective.content_weight": 1.0,
        "method.objective.style_weight": 5.0,
        "method.objective.variation_weight": 1e-3,
        "steps": 500,
    },
    "paper": {},
}
"""Changes by a preset before the options: none named, what looks best soonest; gatys, Gatys et al. 2016 (alpha / beta =
1e-3, from noise); johnson, the optimisation that Johnson et al. 2016 compare with; paper, the rows of Shen and Wang."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for stylising pictures."""

    size: int | None = None
    """Pixels of the result's longer side; 0: the photograph's own. None: 0 by a network, 512 by optimisation."""
    strength: float = 1.0
    """Share of the stylised picture in the result; the rest is the photograph."""
    original_colours: bool = False
    precision: Precision = "float32"
    """auto: bfloat16 by networks where the device multiplies matrices in it, else float32."""
    device: str = ""
    """As torch names it; none: a GPU where there is one."""
    tile: int = 0
    """Pixels across the tiles that a network works in; 0: tiles only where memory asks for them."""
    mask: Path | None = None
    """Mask of the part of each picture that is stylised; see `regions`. None: all."""
    like: str = ""
    """Of an optimisation (version 1), the preset that is begun with; see `PRESETS`."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of its config, such as `method.start`, and their values; a network has the scale of the style alone."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise UserError(f"strength {self.strength} is outside [0, 1]")
        if (self.size or 0) < 0 or self.tile < 0:
            raise UserError("size and tile are numbers of pixels; 0: the picture's own, and as memory asks")
        if self.style_scale <= 0:
            raise UserError(f"style_scale {self.style_scale} is not above 0")

    @property
    def style_scale(self) -> float:
        """Size of strokes relative to the style's own; a network works at 1 / this of the size."""
        return float(str(self.changes.get(STYLE_SCALE, 1.0)))

    @property
    def where(self) -> torch.device:
        """The device that computes."""
        try:
            device = torch.device(self.device or best_device(apple=True))
            torch.zeros(1, device=device).item()  # the device "meta" has tensors without values
        except (RuntimeError, AssertionError, ImportError) as error:
            raise UserError(f"device {self.device!r} cannot be used here; leave it out, or use cpu") from error
        return device


@dataclass(frozen=True)
class Stylised:
    """A result before it is mixed with its photograph."""

    pixels: Pixels
    losses: Float[np.ndarray, "evaluations 3"] | None = None


def scaled(height: int, width: int, scale: float) -> tuple[int, int]:
    """Return the height and width at which a network works so that its strokes come out `scale` times as large."""
    return max(1, round(height / scale)), max(1, round(width / scale))


@dataclass(frozen=True)
class NetworkStyle:
    """Version 2: one pass of a network for a batch of photographs of one size."""

    network: TransformerNetwork
    options: Options
    batch_pixels: int = BATCH_PIXELS

    @property
    def size(self) -> int:
        """Pixels of the longer side that photographs are resized to; 0: their own."""
        return self.options.size or 0

    def __call__(self, photographs: Sequence[Pixels], report: Report) -> list[Stylised]:
        """Stylise at the style's scale; results have the photographs' size.

        Raises:
            UserError: where memory does not hold the features, not even in tiles.
        """
        height, width = photographs[0].shape[:2]
        self.check_memory(height, width)
        at = [images.stretch(pixels, *scaled(height, width, self.options.style_scale)) for pixels in photographs]
        return [Stylised(images.stretch(pixels, height, width)) for pixels in self.passed(at, report)]

    def passed(self, photographs: Sequence[Pixels], report: Report) -> list[Pixels]:
        """Pass pictures through the network; in tiles, with the same result, where a GPU does not hold the features.

        Pictures whose features the host's memory does not hold together are passed one by one.
        """
        device, precision = self.options.where, self.options.precision
        height, width = photographs[0].shape[:2]
        if len(photographs) > 1 and needed_bytes(self.network, len(photographs) * height, width) > free_bytes():
            return [made for photograph in photographs for made in self.passed([photograph], report)]
        tile = self.options.tile or self.tile_for(len(photographs) * height, width, device)
        batch = torch.cat([images.to_tensor(pixels) for pixels in photographs])
        if not tile:
            made = stylise(self.network, batch.to(device), precision)
            return [images.to_pixels(single) for single in torch.split(made, 1)]

        def progress(done: int, total: int) -> None:
            report(done, total, "in tiles")

        tiled = (
            stylise_tiled(self.network, one, tile, str(device), precision, progress) for one in torch.split(batch, 1)
        )
        return [images.to_pixels(single) for single in tiled]

    def check_memory(self, height: int, width: int) -> None:
        """Refuse a photograph that free memory does not hold; even in tiles, the host holds a layer's whole features.

        Raises:
            UserError: with what is needed, what is free, and the size that fits.
        """

        def needed(height: int, width: int) -> int:
            return needed_bytes(self.network, *scaled(height, width, self.options.style_scale))

        check_memory(height, width, needed)

    def tile_for(self, height: int, width: int, device: torch.device) -> int:
        """Return the side of tiles where a GPU does not hold the whole; else 0, as CPUs work in strips anyway."""
        if device.type != "cuda" or needed_bytes(self.network, height, width, tiled=False) <= free_bytes(device):
            return 0
        return TILE


@dataclass(frozen=True)
class PaintingStyle:
    """Version 1: the pixels of each photograph are optimised."""

    paintings: Sequence[Pixels]
    config: Config
    network: backbones.BackboneNetwork
    options: Options
    batch_pixels: int = 0

    @property
    def size(self) -> int:
        """Pixels of the longer side that photographs are resized to; 0: their own."""
        return 512 if self.options.size is None else self.options.size

    def __call__(self, photographs: Sequence[Pixels], report: Report) -> list[Stylised]:
        """Optimise one after the other, and report the loss.

        Raises:
            UserError: where memory does not hold what an evaluation takes.
        """
        self.check_memory(*photographs[0].shape[:2])
        return [self.optimise(pixels, report) for pixels in photographs]

    def check_memory(self, height: int, width: int) -> None:
        """Refuse what free memory of the device does not hold.

        Raises:
            UserError: with what is needed, what is free, and the size that fits.
        """

        def needed(height: int, width: int) -> int:
            config = override(self.config, sized(np.empty((height, width, 3), np.uint8), self.options))
            return image_bytes(config, self.network, height, width)

        check_memory(height, width, needed, self.options.where)

    def optimise(self, pixels: Pixels, report: Report) -> Stylised:
        """Optimise the pixels of one photograph.

        Raises:
            UserError: where the loss is no number at the end.
        """
        config = override(self.config, sized(pixels, self.options))
        job = ImageOptimisation(config, pixels, self.paintings, self.network, str(self.options.where))
        for done in range(job.evaluations):
            losses = job.step()
            if done % 10 == 0 or done == job.evaluations - 1:  # a look at the loss waits for the GPU
                report(done + 1, job.evaluations, f"loss {losses.total.item():.4g}")
        history = np.asarray(job.losses, dtype=np.float64)
        return Stylised(finished(job), history)


def finished(job: ImageOptimisation) -> Pixels:
    """Return the picture that an optimisation ends with.

    Raises:
        UserError: where its loss is no number.
    """
    if not job.loss.isfinite().all():
        raise UserError("the loss grew beyond all numbers; lower --style-weight, or use --optimizer adam")
    return images.to_pixels(job.image)


@dataclass(frozen=True)
class MaskedStyle:
    """Styles of regions: each makes the whole picture, and a mask says where it is seen."""

    styles: Sequence[NetworkStyle | PaintingStyle]
    mask: Mask

    @property
    def size(self) -> int:
        """Pixels of the longer side that photographs are resized to; 0: their own."""
        return max(style.size for style in self.styles)

    @property
    def batch_pixels(self) -> int:
        """Pixels in all of pictures that are made together."""
        return min(style.batch_pixels for style in self.styles)

    def __call__(self, photographs: Sequence[Pixels], report: Report) -> list[Stylised]:
        """Stylise by each style in turn, and put the regions together."""
        made = [style(photographs, report) for style in self.styles]
        shares = self.mask.shares(*photographs[0].shape[:2])
        together = [
            regions.compose(photograph, [result.pixels for result in several], shares)
            for photograph, several in zip(photographs, zip(*made, strict=True), strict=True)
        ]
        losses = [first.losses for first in made[0]] if len(made) == 1 else [None] * len(together)
        return [Stylised(pixels, history) for pixels, history in zip(together, losses, strict=True)]


Style = NetworkStyle | PaintingStyle | MaskedStyle


def open_style(styles: Sequence[str], options: Options, storage: Storage) -> Style:
    """Find what `--style` names: one network, one painting or more, or a style of each colour of the mask.

    Raises:
        UserError: where there is none, or options do not fit it.
    """
    named = [regions.split(style) for style in styles]
    colours = [colour for _, colour in named]
    mask = regions.open_mask(options.mask, colours if any(colours) else [""])
    if mask is None:
        return open_one(styles, options, storage)
    if not any(colours):
        return MaskedStyle([open_one(styles, options, storage)], mask)
    return MaskedStyle([open_one([name], options, storage) for name, _ in named], mask)


def open_one(styles: Sequence[str], options: Options, storage: Storage) -> NetworkStyle | PaintingStyle:
    """Find what names mean that have no colours: one network, or one painting or more that are blended.

    A name is looked for in this order: a file (weights or a picture), a network of the zoo, a painting that comes with
    the task (`great_wave`, or `great_wave.jpg` where the zoo has a network of the name), a run's fingerprint.

    Raises:
        UserError: where there is none, or options do not fit it.
    """
    paintings = [path for path in map(find_painting, styles) if path]
    if len(paintings) == len(styles):
        return open_paintings(paintings, options, storage)
    if len(styles) > 1:
        other = next(name for name in styles if not find_painting(name))
        raise UserError(f"--style {other}: no painting; several styles are blended from paintings alone")
    network = find_network(styles[0], storage)
    foreign = options.changes.keys() - {STYLE_SCALE}
    if foreign or options.like:
        named = min(foreign, default=f"--like {options.like}")
        raise UserError(f"{named} is of paintings (version 1), and {styles[0]} is a network")
    return NetworkStyle(network.to(options.where), options)


def find_painting(name: str) -> Path | None:
    """Return the painting that a name means, if it means one."""
    path = Path(name)
    if path.is_file():
        return None if path.suffix.lower() in NETWORKS else path
    shipped = assets.paintings()
    if name in zoo("style"):
        return None
    return shipped.get(name) or {file.name: file for file in shipped.values()}.get(name)


def find_network(name: str, storage: Storage) -> TransformerNetwork:
    """Return the network that a file, a name of the zoo or a run's fingerprint means; `:painting` picks a style of it.

    `a:0.7,b:0.3` blends styles that were trained together.

    Raises:
        UserError: where there is none, or the name is a painting's.
    """
    if find_painting(name):
        raise UserError(
            f"--style {name}: a painting, where a network is needed: a file of one, a name of the zoo, a run"
        )
    if transformer.is_file(name) or "," not in name or api.is_run_name(name, "style"):
        return one_network(name, storage)
    parts = [part.rpartition(":") for part in name.split(",")]
    try:
        shares = [float(share) for _, _, share in parts]
    except ValueError as error:
        raise UserError(f"--style {name}: a blend is written a:0.7,b:0.3") from error
    if min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise UserError(f"--style {name}: shares are not negative, and not all zero")
    return transformer.blend([one_network(model_name, storage) for model_name, _, _ in parts], shares)


def one_network(name: str, storage: Storage) -> TransformerNetwork:
    """Return the network that a name means, which blends nothing.

    Raises:
        UserError: where there is none, or it has not the style that is named.
    """
    model_name, _, painting = (name, "", "") if transformer.is_file(name) else name.partition(":")
    if transformer.is_file(model_name) or model_name in zoo("style"):
        return transformer.find(model_name, painting)
    if not api.is_run_name(model_name, "style"):
        names = sorted({*zoo("style"), *assets.paintings()})
        raise UserError(f"--style {name}: no such file; or use {', '.join(names)}, or a run's fingerprint")
    run = find_run(model_name, storage)
    return transformer.chosen(run_network(run), run.config.style, painting, model_name)


def find_run(fingerprint: str, storage: Storage) -> api.TrainedRun:
    """Return a finished run of version 2, by its fingerprint's first digits.

    Raises:
        UserError: where there is none, or it is of version 1.
    """
    run = api.load(fingerprint, storage, task="style")
    check_network(run)
    return run


def check_network(run: api.TrainedRun) -> None:
    """Refuse a run that trained no network.

    Raises:
        UserError: naming the run.
    """
    if not isinstance(run.config.method, TrainNetwork):
        raise UserError(f"run {run.fingerprint} trained no network; only method train_network stylises photographs")


def run_network(run: api.TrainedRun, epoch: int = 0) -> TransformerNetwork:
    """Return a run's network after an epoch that was kept; 0: the last. It may have several styles.

    Raises:
        UserError: where the epoch was not kept.
    """
    return trained(run.config, run.weights(epoch))


def open_paintings(paintings: Sequence[Path], options: Options, storage: Storage) -> PaintingStyle:
    """Read paintings and build the backbone that looks at them.

    Raises:
        UserError: where a painting is no picture, weights cannot be had, or a value does not fit.
    """
    if options.tile:
        raise UserError("--tile is for networks; make --size smaller where memory does not hold an optimisation")
    config = painting_config([path.stem for path in paintings], options, storage)
    assert isinstance(config.method, OptimiseImage)
    pictures = [images.read(path).pixels for path in paintings]
    network = backbones.build(config.method.backbone, config.seed, storage).to(options.where)
    return PaintingStyle(pictures, config, network, options)


def painting_config(names: Sequence[str], options: Options, storage: Storage) -> Config:
    """Return the config of an optimisation: the preset's, with what the options change.

    Weights that are a file are imported, and name their network. The default's style weight and layers belong to its
    convention and network: who names others starts from the config's own defaults.
    """
    changes = dict(options.changes)
    source = str(changes.get("method.backbone.weights", ""))
    if Path(source).is_file():
        changes["method.backbone.weights"] = source = weights.import_weights(Path(source), storage)
    if re.fullmatch("[0-9a-f]{64}", source):
        changes.setdefault("method.backbone", network_name(source, storage))
    preset = dict(PRESETS[options.like])
    if not options.like and changes.get("method.objective.convention", "relative") != "relative":
        preset = {}
    elif not options.like and source == "random":
        preset |= {"method.backbone.normalise": False, "method.objective.style_weight": UNTRAINED_WEIGHT}
    if preset and not options.like and not source and changes.get("method.backbone", "vgg19") == "vgg19":
        preset["method.backbone.weights"] = "small"
    fixed = {"method": "optimise_image", "method.shape": "keep", "style": list(names), "epochs": 1}
    precision = "float32" if options.precision == "auto" else options.precision
    return override(Config(), {**fixed, "precision": precision, "steps": EVALUATIONS, **preset, **changes})


def sized(pixels: Pixels, options: Options) -> dict[str, object]:
    """Return what an optimisation's config takes of its picture: the size, and what follows from it by default.

    That is, without a preset and where nothing else is said, the sizes that are begun with and compared at. Half of the
    evaluations are made at half the size, and no size that is compared at is below `SMALLEST` pixels.
    """
    size, shorter = max(pixels.shape[:2]), min(pixels.shape[:2])
    if options.like:
        return {"method.size": size}
    octaves = min(3, max(1, int(np.log2(max(shorter, SMALLEST) / SMALLEST)) + 1))
    coarse = [size // 2] if shorter // 2 >= SMALLEST * 2 ** (octaves - 1) else []
    chosen: dict[str, object] = {"method.objective.octaves": octaves, "method.scales": coarse}
    chosen["method.objective.content_octave"] = min(1, octaves - 1)
    left = {path: value for path, value in chosen.items() if path not in options.changes}
    return {"method.size": size, **left}


def network_name(digest: str, storage: Storage) -> str:
    """Return the config's name of the network whose imported weights these are."""
    network = weights.stored(digest, storage).network
    return next(kind.__name__.lower() for kind, name in backbones.NETWORKS.items() if name == network)
