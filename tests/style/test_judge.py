"""What is measured of pictures and networks, against pictures whose measure is known."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.store.storage import Storage
from retable.tasks.style.apply import judge
from retable.tasks.style.apply.judge import burnt, errors, flicker, lattice
from retable.tasks.style.cli import app
from retable.tasks.style.config import Squeezenet
from retable.tasks.style.files import assets, images
from retable.tasks.style.networks import tiling, transformer
from retable.tasks.style.networks.backbones import build
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.weights import import_weights
from retable.tasks.style.tools.pictures import judge_cli

torch.set_num_threads(1)


def photograph(side=128):
    return images.fit(images.read(assets.photographs()["coffee"]).pixels, side)


def noise(shape=(96, 160, 3), seed=0):
    return np.random.default_rng(seed).normal(128, 20, shape).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("period", [2, 4])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_lattice_stands_out_by_its_power(period, axis):
    """Noise of variance v has power v sum(w^2), a wave of amplitude a has (a sum(w) / 2)^2, at period 2 four times."""
    found, expected = {}, []
    for seed in range(5):
        plain = noise(seed=seed)
        place = np.arange(plain.shape[axis]).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        wave = np.cos(2 * np.pi * place / period)
        for amplitude in (0, 4, 8, 16):
            found.setdefault(amplitude, []).append(lattice((plain + amplitude * wave).clip(0, 255).astype(np.uint8)))
        window = np.hanning(96)[:, None] * np.hanning(160)
        power = (16 * window.sum() / (1 if period == 2 else 2)) ** 2
        spread = np.var(plain @ judge.LUMA) * (window**2).sum() * np.log(2)  # a power's median is ln 2 of its mean
        expected.append(power / spread)
    middle = {amplitude: np.median(values) for amplitude, values in found.items()}
    assert middle[0] < 20
    assert middle[16] / middle[8] == pytest.approx(4, rel=0.2) and middle[8] / middle[4] == pytest.approx(4, rel=0.3)
    assert middle[16] == pytest.approx(np.median(expected), rel=0.2)


def test_other_waves_are_no_lattice():
    place = np.arange(160)[None, :, None]
    striped = noise() + 16 * np.cos(2 * np.pi * place / 5)
    assert lattice(striped.clip(0, 255).astype(np.uint8)) < 20
    with pytest.raises(ValueError, match="too few"):
        lattice(noise((60, 160, 3)))


def test_burnt_pixels_are_counted():
    pixels = np.full((10, 10, 3), 100, np.uint8)
    pixels[0, :4], pixels[1, :3], pixels[2, :2, 0] = 0, 255, 255
    assert burnt(pixels) == 0.07


def test_errors_are_nil_for_the_thing_itself():
    network = build(Squeezenet(weights="random", normalise=False), 0, None)
    picture = photograph()
    style, content = errors(network, picture, picture, [picture])
    assert style < 1e-12 and content < 1e-12
    other = errors(network, noise(picture.shape), picture, [picture])
    assert other[0] > 0.01 and other[1] > 0.01


def test_flicker_is_one_for_a_network_that_changes_nothing(monkeypatch):
    monkeypatch.setattr(judge, "stylise", lambda network, image: image)
    assert flicker(None, photograph()) == pytest.approx(1)
    monkeypatch.setattr(judge, "stylise", lambda network, image: 0.5 * image)
    assert flicker(None, photograph()) == pytest.approx(0.5)
    monkeypatch.setattr(judge, "stylise", lambda network, image: image - image.mean(0, keepdim=True))
    assert flicker(None, photograph()) < 0.1
    still = torch.rand(1, 3, 400, 400, generator=torch.Generator().manual_seed(0))  # a pattern that does not move along
    monkeypatch.setattr(judge, "stylise", lambda network, image: still[..., : image.shape[2], : image.shape[3]])
    assert flicker(None, photograph()) > 10


def test_tones_are_compared_whatever_their_range_and_grain():
    picture = photograph(256)
    assert judge.tone(picture, picture) == pytest.approx(0, abs=1e-9)
    assert judge.tone(255 - picture, picture) == pytest.approx(2, abs=1e-9)
    assert judge.tone((0.3 * picture + 100).astype(np.uint8), picture) < 0.01
    grain = np.random.default_rng(0).normal(0, 40, picture.shape)
    assert judge.tone((picture + grain).clip(0, 255).astype(np.uint8), picture) < 0.05
    assert judge.tone(picture[::-1], picture) > 0.5
    assert judge.tone(np.full_like(picture, 90), picture) == 1


class Drawn:
    """In place of a network: what its last residual layer says, and what it draws."""

    layers = (SimpleNamespace(residual=True), SimpleNamespace(residual=False))

    def __init__(self, features, picture):
        self.features, self.picture = features, picture

    def walk(self, image, choose):
        choose(0, self.features)
        choose(1, torch.zeros_like(self.features))
        return images.to_tensor(self.picture)


def test_a_sliver_is_a_spike_that_shows():
    quiet = torch.randn(1, 4, 24, 40, generator=torch.Generator().manual_seed(0))
    spiked = quiet.clone()
    spiked[0, 2, 10, 20] = 1000.0
    plain, red, elsewhere, speck = (noise() // 4 + 90 for _ in range(4))
    red[38:46, 80:86] = elsewhere[8:16, 20:26] = speck[40:42, 80:82] = 200, 20, 40
    assert 20 <= judge.sliver(Drawn(spiked, red), plain) <= 60
    assert judge.sliver(Drawn(quiet, red), plain) == 0
    assert judge.sliver(Drawn(spiked, plain), plain) == judge.sliver(Drawn(spiked, elsewhere), plain) == 0
    assert judge.sliver(Drawn(spiked, speck), plain) < judge.SLIVER


@pytest.mark.slow
def test_published_networks_keep_tones_and_show_no_slivers(shared):
    """What the zoo's networks are held to: 0.21 and 0.10 here; their spikes, which they have as well, do not show."""
    files = sorted((shared / "data/style/bsds500").glob("test_*.jpg"))[5::12][:16]
    shown = [images.read(path).pixels for path in files]
    for name, bound in (("wave", 0.25), ("scream", 0.15)):
        network = transformer.read(shared / f"weights/style/v2_{name}_lengstrom_layout.safetensors")
        assert max(judge.sliver(network, each) for each in shown) < judge.SLIVER / 2
        made = [images.to_pixels(tiling.stylise(network, images.to_tensor(each))) for each in shown]
        assert 0.05 < np.mean([judge.tone(*pair) for pair in zip(made, shown, strict=True)]) < bound


def test_the_command_prints_networks_and_pictures(tmp_path):
    torch.manual_seed(0)
    (tmp_path / "mine.safetensors").write_bytes(transformer.pack(TransformerNetwork(4, "resize", "tanh"), {}))
    picture = tmp_path / "coffee.png"
    picture.write_bytes(images.encode_png(photograph()))
    arguments = ["judge", str(tmp_path / "mine.safetensors"), str(picture), "--painting", "the_scream"]
    found = CliRunner().invoke(app, [*arguments, "--size", "256", "--storage", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "style error" in found.output and "3 photographs, longer side 256 pixels" in found.output
    bare = CliRunner().invoke(app, ["judge", str(tmp_path / "mine.safetensors"), "--storage", str(tmp_path)])
    assert "say which painting it is after" in str(bare.exception)


@pytest.mark.parametrize("name", ["scan.jpe", "painting"])
def test_a_painting_is_a_file_whatever_its_suffix(tmp_path, name):
    images.write(tmp_path / "a.jpg", noise())
    file = (tmp_path / "a.jpg").rename(tmp_path / name)
    assert judge_cli.find_work(str(file)) == file
    assert judge_cli.find_work("great_wave") == assets.paintings()["great_wave"]
    network = (tmp_path / "a.jpg").with_name("the_scream.safetensors")
    network.touch()
    assert judge_cli.find_work(str(network)) == assets.paintings()["the_scream"]


def test_pictures_that_are_too_small_to_judge_are_told_before_networks_run(tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "judge_network", lambda *given: pytest.fail("a network was run"))
    for name, shape in (("tiny", (50, 50, 3)), ("panorama", (100, 900, 3))):
        images.write(tmp_path / f"{name}.png", noise(shape))
    for arguments, line in (
        ([str(tmp_path / "tiny.png")], r"tiny.png: 50 x 50 pixels are too few to judge; 64 each way are needed"),
        (["--photograph", str(tmp_path / "panorama.png"), "--size", "256"], r"panorama.png: 256 x 28 pixels"),
    ):
        found = CliRunner().invoke(app, ["judge", "great_wave", *arguments, "--storage", str(tmp_path)])
        assert isinstance(found.exception, UserError) and re.search(line, str(found.exception)), found.exception


def test_a_shortage_of_memory_is_told(tmp_path, monkeypatch):
    def short(*given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9000000000 bytes")

    monkeypatch.setattr(judge, "judge_network", short)
    monkeypatch.setattr(judge_cli, "backbone", lambda *given: None)
    found = CliRunner().invoke(app, ["judge", "great_wave", "--storage", str(tmp_path)])
    assert isinstance(found.exception, UserError) and "choose a smaller --size" in str(found.exception)


@pytest.mark.parametrize(
    "painting, published, photographs, side",
    [
        ("great_wave", "wave", ["coffee"], 192),
        pytest.param("great_wave", "wave", ["astronaut", "coffee"], 288, marks=pytest.mark.slow),
        pytest.param("the_scream", "scream", ["astronaut", "coffee"], 288, marks=pytest.mark.slow),
    ],
)
def test_the_zoo_is_held_to_what_others_publish(shared, tmp_path, painting, published, photographs, side):
    """Bounds are what a published network of the same painting has, by a judge that trained neither.

    Ours has a tenth of its lattice, flickers less and keeps light and dark at least as well; it is less near to the
    painting.
    """
    storage, weights = Storage.open(tmp_path), shared / "weights/style"
    digest = import_weights(weights / "squeezenet1_0_compressed.net", storage)
    network = build(Squeezenet(weights=digest, normalise=False), 0, storage)
    shown = [images.fit(images.read(assets.photographs()[name]).pixels, side) for name in photographs]
    work = images.read(assets.paintings()[painting]).pixels
    ours, theirs = (
        judge.judge_network(found, shown, [work], network)
        for found in (
            transformer.find(painting),
            transformer.read(weights / f"v2_{published}_lengstrom_layout.safetensors"),
        )
    )
    assert ours["lattice"] <= theirs["lattice"] / 10 and ours["burnt"] <= 0.001
    assert ours["flicker"] <= 0.95 * theirs["flicker"]
    assert ours["tone"] <= theirs["tone"] <= 0.3 and ours["spike"] == theirs["spike"] == 0
    assert ours["style_error"] <= 2 * theirs["style_error"] and ours["content_error"] <= 1.9 * theirs["content_error"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if "great_wave" in n else pytest.mark.slow) for n in sorted(zoo("style"))]
)
def test_a_network_of_the_zoo_has_no_lattice_keeps_tones_and_shows_no_slivers(name):
    """Photographs have a lattice of up to 20, published networks 246 and 485, and tones of 0.1 to 0.2."""
    shown = [images.fit(images.read(assets.photographs()[each]).pixels, 288) for each in ("astronaut", "coffee")]
    network = transformer.find(name)
    made = [images.to_pixels(tiling.stylise(network, images.to_tensor(each))) for each in shown]
    assert max(map(lattice, made)) < 40
    assert max(judge.tone(*pair) for pair in zip(made, shown, strict=True)) < 0.3
    assert max(judge.sliver(network, each) for each in shown) < judge.SLIVER
