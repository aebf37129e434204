"""Train a painting's network for the zoo, and distil its network for videos; `style_zoo.py` is the command.

The network, the losses and the loss on moved images are those of `retable train style`. Besides, some losses have a
goal that their weights follow, a second loss network sees deeper, the weights' running mean is what counts, photographs
are made lighter and darker, and networks learn from a network. The training has up to four stages, each of which
continues from its last save.
"""

from __future__ import annotations

import copy
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.platform.store.weights import read_bytes
from retable.platform.train.seeds import generator
from retable.platform.train.worker import autocast
from retable.tasks.style import losses
from retable.tasks.style.config import Objective, TrainNetwork
from retable.tasks.style.files import assets, generate, images
from retable.tasks.style.learner import MOTION, NOISE, Judge
from retable.tasks.style.networks import weights
from retable.tasks.style.networks.backbones import BackboneNetwork, Image
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import layers
from retable.tasks.style.networks.transformer import pack, untrained

FINE = ("relu1_1", "relu2_1", "relu3_1")
PART = Objective(convention="relative", content_layers=("relu3_1",), style_layers=FINE, style_weight=1.0)
JUDGES = {
    "vgg19_normalised_conv3_1.pth": replace(PART, content_weight=0.03, variation_weight=0.25),
    "vgg19_pruned16x_conv5_1.pth": replace(
        PART, content_layers=("relu4_1",), style_layers=("relu4_1", "relu5_1"), style_weight=0.5
    ),
}
"""File of a loss network -> what it judges. The second's content loss has a goal."""
TAUGHT = replace(PART, content_layers=FINE, content_weight=0.5, style_weight=2.0)
"""Objective of the first loss network for a network that learns from another one's results."""
SHIFT = 8
"""Pixels less that the loss networks are shown, at a place drawn anew for each step."""
SPIKES, SATURATION = 0.1, 0.1
PRICES = {"content": (0.3, 0.02, 5.0), "tone": (0.3, 0.02, 3.0), "steady": (5.0, 1.0, 60.0)}
"""Of a loss with a goal: the weight to begin with, the least and the most."""
PACE, FOLLOWED = 0.02, 0.1
"""Of what a weight with a goal moves in a step, at most; and the share of the last loss in the mean that it follows."""
WARM = 50
"""Steps in which the learning rate rises, and weights with a goal stay."""
LONGER, LANDSCAPE = 432, (288, 432)
"""Longer side of the photographs, and height and width of the generated landscapes."""
EVERY, SAVED = 50, 40.0
"""Steps between two lines that are printed, and seconds between two saves."""
STREAM = "style.zoo"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings with which a painting's networks are trained."""

    content: float
    """Goal of the content loss at relu4_1."""
    steady: float
    """Goal of the mean square by which a moved, noisy image's result differs."""
    tone: float = 0.1
    filters: int = 24
    video_filters: int = 8
    size: int = 256
    batch: int = 8
    style_size: int = 600
    photographs: int = 300
    landscapes: int = 60
    evened: bool = False
    """Whether the large network too is held to its own pictures, without their lattice, at the end."""


RECIPES = {
    "great_wave": Recipe(content=0.25, steady=0.0036),
    "starry_night": Recipe(content=0.32, steady=0.007),
    "the_scream": Recipe(content=0.27, steady=0.0016, evened=True),
    "metzinger": Recipe(content=0.30, steady=0.0036),
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the training, of one network."""

    name: str
    rate: float
    """The learning rate after its rise, before half a cosine."""
    lattice: float
    """Weight of the lattice."""
    batch: int
    size: int
    decay: float = 0.0
    """Of the running mean of the weights; 0: the last weights count."""
    seconds: float = 0.0
    steps: int = 0
    """How long it takes: so many steps, or else seconds."""


def stages(recipe: Recipe, seconds: float, steps: int) -> tuple[Stage, Stage, Stage, Stage]:
    """Return the stages: the network, the video network, and both evened; `steps` of each, or else by the clock."""
    network = Stage(
        name="network",
        rate=2e-3,
        decay=0.995,
        lattice=6000.0,
        batch=recipe.batch,
        size=recipe.size,
        seconds=0.8 * seconds,
        steps=steps,
    )
    smaller = recipe.size * 5 // 32 * 4
    evened = replace(network, lattice=40_000.0, batch=max(1, recipe.batch // 4), size=smaller)
    return (
        network,
        replace(network, name="video", rate=3e-3, decay=0.0, seconds=0.2 * seconds),
        replace(evened, name="video-evened", rate=1.5e-3, decay=0.98, steps=steps or 351),
        replace(evened, name="network-evened", rate=4e-4, decay=0.0, steps=steps or 154),
    )


class Pass(NamedTuple):
    """A network's results, and what is heard of its layers on the way."""

    made: Image
    residual: tuple[Tensor, ...]
    """Outputs of the layers between both changes of resolution, before normalization."""
    said: Tensor
    """Output of the last layer, before the final activation."""

    def spikes(self) -> Tensor:
        """Return the weighed loss of what lies far from its channel's mean."""
        return SPIKES * torch.stack([losses.spikes(output).mean() for output in self.residual]).sum()


class Heard:
    """A network whose layers are listened to."""

    def __init__(self, network: TransformerNetwork, device: str) -> None:
        self.network, self.device = network, device
        self.residual: list[Tensor] = []
        self.said = torch.zeros(1)
        for layer in layers(network)[3:-2]:
            assert layer.norm is not None
            layer.norm.register_forward_pre_hook(self._before)
        layers(network)[-1].convolution.register_forward_hook(self._last)

    def _before(self, norm: nn.Module, inputs: tuple[Tensor]) -> None:
        self.residual.append(inputs[0])

    def _last(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self.said = output

    def __call__(self, photographs: Image) -> Pass:
        """Stylise images."""
        self.residual.clear()
        with self.mixed():
            made = self.network(photographs).float()
        return Pass(made, tuple(self.residual), self.said)

    def mixed(self) -> torch.autocast:
        """Return the context that networks compute in: bfloat16 on a GPU."""
        return autocast(self.device, "bfloat16" if self.device == "cuda" else "float32")


class Goals(nn.Module):
    """Weights that rise while a loss misses its goal, and fall while it meets it: dual ascent on their logarithms."""

    aims: Tensor
    bounds: Tensor
    log: Tensor
    mean: Tensor

    def __init__(self, aims: Mapping[str, float]) -> None:
        super().__init__()
        self.names = tuple(aims)
        prices = torch.tensor([PRICES[name] for name in aims]).log()
        self.register_buffer("aims", torch.tensor(list(aims.values())), persistent=False)
        self.register_buffer("bounds", prices[:, 1:], persistent=False)
        self.register_buffer("log", prices[:, 0].clone())
        self.register_buffer("mean", self.aims.clone())

    def forward(self, values: Mapping[str, Tensor], pace: float) -> dict[str, Tensor]:
        """Weigh losses, and then move the weights by at most `pace` of themselves."""
        current = torch.stack([values[name] for name in self.names])
        weighed = self.log.exp() * current
        self.mean = self.mean.lerp(current.detach(), FOLLOWED)
        moved = self.log + pace * (self.mean / self.aims - 1).clamp(-1, 1)
        self.log = moved.clamp(self.bounds[:, 0], self.bounds[:, 1])
        return dict(zip(self.names, weighed, strict=True))


class Photographs:
    """Pictures as bytes on the device, where crops of them are drawn."""

    def __init__(self, shared: Path, recipe: Recipe, device: str) -> None:
        folder = shared / "data/style/bsds500"
        files = sorted([*folder.glob("train_*.jpg"), *folder.glob("val_*.jpg")])[: recipe.photographs]
        if not files:
            raise UserError(f"{folder}: no train_*.jpg or val_*.jpg; the photographs of BSDS500 belong there")
        pictures = [images.fit(images.read(file).pixels, LONGER) for file in files]
        for number in range(recipe.landscapes):
            pictures.append(generate.draw(generator(0, f"{STREAM}.landscape", number), *LANDSCAPE))
        shapes = sorted({picture.shape for picture in pictures})
        groups = [[picture for picture in pictures if picture.shape == shape] for shape in shapes]
        self.stacks = [torch.from_numpy(np.stack(group)).permute(0, 3, 1, 2).to(device) for group in groups]
        self.odds = [len(group) / len(pictures) for group in groups]
        self.photographs, self.landscapes = len(files), recipe.landscapes

    def draw(self, rng: np.random.Generator, count: int, size: int) -> Image:
        """Return crops of one shape of pictures, resized, perhaps mirrored, and made lighter or darker."""
        stack = self.stacks[int(rng.choice(len(self.stacks), p=self.odds))]
        device = stack.device
        pictures = stack[torch.from_numpy(rng.integers(len(stack), size=count)).to(device)].float() / 255
        height, width = pictures.shape[2:]
        side = max(rng.uniform(0.75, 1.0) * min(height, width), 0.8 * min(size, height, width))
        theta = np.zeros((count, 2, 3), np.float32)
        theta[:, 0, 0] = side / width * rng.choice([-1.0, 1.0], count)
        theta[:, 1, 1] = side / height
        theta[:, 0, 2] = rng.uniform(-1, 1, count) * (1 - side / width)
        theta[:, 1, 2] = rng.uniform(-1, 1, count) * (1 - side / height)
        grid = functional.affine_grid(torch.from_numpy(theta).to(device), [count, 3, size, size], align_corners=False)
        crops = functional.grid_sample(pictures, grid, "bilinear", "reflection", align_corners=False)
        gain = torch.from_numpy(rng.uniform(0.7, 1.25, (count, 1, 1, 1)).astype(np.float32)).to(device)
        return (crops * gain).clamp(0, 1).contiguous(memory_format=torch.channels_last)


Lesson = Callable[[Heard, Image, np.random.Generator, float], dict[str, Tensor]]
"""Gives the weighed losses of a network on a batch: of what it draws, and by how much weights with a goal may move."""


class Training:
    """A network in a stage of its training, which continues from its file; `kept` is what else lies there."""

    def __init__(self, network: TransformerNetwork, stage: Stage, file: Path, kept: nn.Module, device: str) -> None:
        self.network = network.to(device).to(memory_format=torch.channels_last).requires_grad_(True).train()
        self.mean = AveragedModel(self.network, avg_fn=partial(running_mean, stage.decay))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=stage.rate, betas=(0.9, 0.99))
        self.stage, self.file, self.kept, self.device = stage, file, kept.to(device), device
        self.steps, self.seconds = 0, 0.0
        if file.exists():
            self._load()

    def done(self) -> float:
        """Return which share of the stage is done."""
        stage = self.stage
        return self.steps / stage.steps if stage.steps else self.seconds / max(stage.seconds, 1e-9)

    def run(self, lesson: Lesson, photographs: Photographs) -> TransformerNetwork:
        """Train until the stage is done, saving now and then; return the network that the weights' mean makes.

        Raises:
            UserError: where the loss or a weight is no longer finite; the last finite state stays in the file.
        """
        heard, before, began = Heard(self.network, self.device), self.seconds, time.monotonic()
        saved = began
        while self.done() < 1:
            terms = self._step(lesson, heard, photographs)
            self.seconds = before + time.monotonic() - began
            if self.steps == 1 or self.steps % EVERY == 0:
                values = {name: float(value) for name, value in terms.items()}
                print(f"{self.stage.name} {self.steps}:", *(f"{n} {v:.4g}" for n, v in values.items()), flush=True)
                if not all(map(math.isfinite, values.values())):
                    raise UserError(f"{self.file}: the loss of step {self.steps} is not finite")
            if time.monotonic() - saved > SAVED:
                self._save()
                saved = time.monotonic()
        self._save()
        return self.result()

    def _step(self, lesson: Lesson, heard: Heard, photographs: Photographs) -> dict[str, Tensor]:
        """Update the network once; return its losses."""
        stage, rng = self.stage, generator(0, f"{STREAM}.{self.stage.name}", self.steps)
        fall = max(0.02, (1 + math.cos(math.pi * self.done())) / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = stage.rate * min(1, (self.steps + 1) / WARM) * fall
        pace = PACE * (1 - 0.8 * self.done()) if self.steps >= WARM else 0.0
        batch = photographs.draw(rng, stage.batch, stage.size)
        terms = lesson(heard, batch, rng, pace)
        self.optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.mean.update_parameters(self.network)
        self.steps += 1
        return {name: value.detach() for name, value in terms.items()}

    def result(self) -> TransformerNetwork:
        """Return a copy of the network that the weights' mean makes, to be used."""
        made = copy.deepcopy(self.mean.module)
        assert isinstance(made, TransformerNetwork)
        return made.eval().requires_grad_(False)

    def _save(self) -> None:
        modules = {"network": self.network, "mean": self.mean, "kept": self.kept}
        state = {name: module.state_dict() for name, module in modules.items()}
        if not all(bool(value.isfinite().all()) for values in state.values() for value in values.values()):
            raise UserError(f"{self.file}: the weights after step {self.steps} are not finite")
        file = io.BytesIO()
        torch.save({**state, "optimizer": self.optimizer.state_dict(), "at": (self.steps, self.seconds)}, file)
        Storage.open(self.file.parent).write(self.file.name, file.getvalue())

    def _load(self) -> None:
        state = torch.load(self.file, map_location="cpu", weights_only=True)
        try:
            self.network.load_state_dict(state["network"])
            self.mean.load_state_dict(state["mean"])
            self.kept.load_state_dict(state["kept"])
        except RuntimeError as error:
            raise UserError(f"{self.file}: of a training with other settings; name another --out") from error
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.seconds = state["at"]


def running_mean(decay: float, mean: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
    """Return a mean of weights with their newest value, of all so far while these are few."""
    return mean.lerp(value, torch.as_tensor(1 / (count + 1), device=mean.device).clamp(min=1 - decay))


def paint(
    judges: tuple[Judge, Judge],
    goals: Goals,
    lattice: float,
    heard: Heard,
    photographs: Image,
    rng: np.random.Generator,
    pace: float,
) -> dict[str, Tensor]:
    """Return the losses of a network that learns a painting."""
    passed = heard(photographs)
    made = passed.made
    crop = judges[0].place(photographs.shape[2:], rng)
    with heard.mixed():
        fine, deep = (judge(photographs[crop], made[crop], None) for judge in judges)
    aimed = {
        "content": deep.content.mean(),
        "tone": losses.tone(made[crop], photographs[crop]).mean(),
        "steady": unsteadiness(heard, photographs, made, rng),
    }
    weighed: dict[str, Tensor] = goals(aimed, pace)
    return weighed | {
        "style": fine.style.mean(),
        "deep style": deep.style.mean(),
        "fine content": fine.content.mean(),
        "variation": fine.variation.mean(),
        "spikes": passed.spikes(),
        "saturation": SATURATION * functional.relu(passed.said.float().abs() - 1).mean(),
        "lattice": lattice * losses.lattice(made).mean(),
    }


def unsteadiness(heard: Heard, photographs: Image, made: Image, rng: np.random.Generator) -> Tensor:
    """Return by how much the results of moved, noisy images differ from the moved results, on half of a batch."""
    half = max(1, len(photographs) // 2)
    down, right = (int(rng.integers(-MOTION, MOTION + 1)) for _ in range(2))
    moved = torch.roll(photographs[:half], (down, right), (2, 3))
    source = torch.Generator(moved.device).manual_seed(int(rng.integers(2**31)))
    noise = torch.randn(moved.shape, generator=source, device=moved.device)
    again = heard((moved + NOISE * noise).clamp(0, 1)).made
    inside = (..., *(slice(2 * MOTION, -2 * MOTION),) * 2)  # what came in at the other border is no motion
    return (again - torch.roll(made[:half], (down, right), (2, 3)))[inside].square().mean()


def imitate(
    teacher: TransformerNetwork,
    sees: BackboneNetwork,
    lattice: float,
    heard: Heard,
    photographs: Image,
    rng: np.random.Generator,
    pace: float,
) -> dict[str, Tensor]:
    """Return the losses of a network that learns the teacher's results, and a loss network's features of them."""
    passed = heard(photographs)
    with heard.mixed():
        with torch.no_grad():
            aim = teacher(photographs).float()
            wanted = sees(aim, FINE)
            grams = {name: losses.gram(features) / features[0, 0].numel() for name, features in wanted.items()}
        aims = losses.Targets({name: features.float() for name, features in wanted.items()}, grams)
        seen = losses.loss(sees, TAUGHT, aims, passed.made)
    return {
        "pixels": 2 * (passed.made - aim).abs().mean(),
        "features": seen.content.mean(),
        "style": seen.style.mean(),
        "spikes": passed.spikes(),
        "lattice": lattice * losses.lattice(passed.made).mean(),
    }


def even(
    teacher: TransformerNetwork,
    lattice: float,
    heard: Heard,
    photographs: Image,
    rng: np.random.Generator,
    pace: float,
) -> dict[str, Tensor]:
    """Return the losses of a network that is held to the teacher's results, but not to their lattice."""
    made = heard(photographs).made
    with torch.no_grad(), heard.mixed():
        aim = teacher(photographs).float()
    apart = made - aim
    return {
        "pixels": 2 * apart.abs().mean(),
        "gradients": 2 * (apart.diff(dim=2).abs().mean() + apart.diff(dim=3).abs().mean()),
        "lattice": lattice * losses.lattice(made).mean(),
    }


def judges_of(shared: Path, work: Image) -> tuple[Judge, Judge]:
    """Return the loss networks and what they see of a painting.

    Raises:
        UserError: where their files are missing.
    """
    judges = []
    for name, objective in JUDGES.items():
        file = shared / "weights/style" / name
        # Reflection is slow, and makes no difference away from the border.
        read = replace(weights.recognise(file, read_bytes(file)), padding="zeros")
        network = BackboneNetwork(read.network, weights.assemble(read, "average"), read.mean, read.std).to(work.device)
        judges.append(Judge(network, objective, [losses.targets(network, objective, None, [work])], SHIFT))
    return judges[0], judges[1]


def fresh(filters: int) -> TransformerNetwork:
    """Return a network of so many filters with fresh weights."""
    torch.manual_seed(0)
    return untrained(TrainNetwork(filters=filters, upsampling="resize", output="tanh", calm_start=True))


def train(painting: str, out: Path, shared: Path, seconds: float, steps: int, recipe: Recipe) -> None:
    """Write a painting's network and its network for videos to a folder; continue what was begun there.

    Raises:
        UserError: where photographs or loss networks are missing, a file is of another training, or a loss diverges.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    out.mkdir(parents=True, exist_ok=True)
    pixels = images.fit(images.read(assets.paintings()[painting]).pixels, recipe.style_size)
    judges = judges_of(shared, images.to_tensor(pixels).to(device))
    photographs = Photographs(shared, recipe, device)
    goals = Goals({name: getattr(recipe, name) for name in PRICES})
    past: dict[str, list[dict[str, Any]]] = {"": [], "-video": []}

    def trained(network: TransformerNetwork, stage: Stage, lesson: Lesson, kept: nn.Module) -> TransformerNetwork:
        training = Training(network, stage, out / f"{painting}.{stage.name}.state", kept, device)
        made = training.run(lesson, photographs)
        kind = "-video" if stage.name.startswith("video") else ""
        past[kind].append({**asdict(stage), "steps": training.steps, "seconds": round(training.seconds)})
        metadata = provenance(painting, recipe, photographs, past[kind], device)
        (out / f"{painting}{kind}.safetensors").write_bytes(pack(copy.deepcopy(made).cpu(), metadata, half=True))
        return made

    first, second, third, last = stages(recipe, seconds, steps)
    large = trained(fresh(recipe.filters), first, partial(paint, judges, goals, first.lattice), goals)
    learns = partial(imitate, large, judges[0].network, second.lattice)
    small = trained(fresh(recipe.video_filters), second, learns, nn.Module())
    trained(small, third, partial(even, large, third.lattice), nn.Module())
    if recipe.evened:
        trained(copy.deepcopy(large), last, partial(even, large, last.lattice), nn.Module())


def provenance(
    painting: str, recipe: Recipe, pictures: Photographs, past: list[dict[str, Any]], device: str
) -> dict[str, Any]:
    """Return the metadata of a network's file."""
    return {
        "task": "style",
        "paintings": [painting],
        "licence": "Apache-2.0",
        "data_description": f"{pictures.photographs} photographs of BSDS500 (training and validation) and "
        f"{pictures.landscapes} generated landscapes",
        "trained_by": f"python -m benchmarks style_zoo train {painting}",
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "steps": sum(stage["steps"] for stage in past),
        "seconds": sum(stage["seconds"] for stage in past),
        "seed": 0,
        "config": {"recipe": asdict(recipe), "stages": past},
    }
