import json
import math
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import get_type_hints

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from retable.platform.errors import UserError
from retable.platform.models.predict import expand
from retable.platform.models.zoo import zoo
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Alexnet, Objective, OptimiseImage, Vgg19
from retable.tasks.style.files import assets, images
from retable.tasks.style.losses import loss, targets
from retable.tasks.style.networks import transformer, weights
from retable.tasks.style.networks.backbones import build
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import needed_bytes
from retable.tasks.style.tools.pictures import batches, memory, regions
from retable.tasks.style.tools.pictures.batches import (
    Job,
    nothing,
    plan_jobs,
    sheet,
    stylise_files,
    stylise_jobs,
)
from retable.tasks.style.tools.pictures.knobs import Knobs
from retable.tasks.style.tools.pictures.regions import Mask, compose
from retable.tasks.style.tools.pictures.stylise import (
    NetworkStyle,
    Options,
    find_network,
    open_style,
    painting_config,
    sized,
)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def network(seed=0):
    """A network of random weights whose pictures fill the range of levels."""
    torch.manual_seed(seed)
    made = TransformerNetwork(filters=4).eval()
    last = made.layers[-1].convolution
    with torch.no_grad():
        last.weight *= 300
        last.bias += 127
    return made


RANDOM = {"method.backbone": "alexnet", "method.backbone.weights": "random", "steps": 3}


@pytest.fixture
def weights_file(tmp_path):
    path = tmp_path / "style.safetensors"
    path.write_bytes(transformer.pack(network(), {"style": "a test's"}, half=False))
    return path


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number, shape in enumerate([(20, 28), (20, 28), (33, 17)]):
        images.write(folder / f"{number}.png", noise(*shape, seed=number))
    return folder


def outcomes(*arguments, **options):
    return [outcome for outcome in stylise_files(*arguments, **options) if not isinstance(outcome, str)]


def test_files_are_what_the_network_says(tmp_path, storage, photographs, weights_file):
    found = outcomes([str(photographs)], [str(weights_file)], tmp_path / "out", Options(), storage)
    assert [outcome.job.target.name for outcome in found] == ["0.png", "1.png", "2.png"]
    for outcome in found:
        pixels = images.read(outcome.job.source).pixels
        with torch.no_grad():
            expected = network()(torch.from_numpy(pixels / np.float32(255)).permute(2, 0, 1)[None])
        levels = (expected[0].clamp(0, 1) * 255).permute(1, 2, 0).numpy()
        made = images.read(outcome.job.target).pixels
        assert made.shape == pixels.shape and np.abs(made - levels).max() < 0.51


def test_batch_equals_single(tmp_path, photographs):
    jobs = [Job(path, tmp_path / path.name) for path in sorted(photographs.iterdir())]
    sizes = []

    class Counting(NetworkStyle):
        def __call__(self, pixels, report):
            sizes.append(len(pixels))
            return super().__call__(pixels, report)

    for limit in (10**6, 0):
        style = Counting(network(), Options(), batch_pixels=limit)
        list(stylise_jobs(style, jobs, Options()))
        made = [images.read(job.target).pixels.astype(int) for job in jobs]
        if limit:
            together = made
    assert sizes == [2, 1, 1, 1, 1]
    assert max(np.abs(a - b).max() for a, b in zip(together, made, strict=True)) <= 1
    assert len(np.unique(made[0])) > 20


def test_tiles_give_the_same(tmp_path):
    pixels = noise(70, 90)
    whole, tiled = (NetworkStyle(network(), Options(tile=tile))([pixels], batches.nothing) for tile in (0, 32))
    assert np.abs(whole[0].pixels.astype(int) - tiled[0].pixels).max() <= 1


@pytest.mark.parametrize(("scale", "size"), [(2.0, (30, 40)), (0.5, (120, 162)), (3.0, (20, 27))])
@pytest.mark.parametrize("tile", [0, 24])
def test_strokes_are_larger_where_the_network_sees_less(scale, size, tile):
    pixels = [noise(60, 81, seed) for seed in range(2)]
    options = Options(tile=tile, changes={"method.style_scale": scale})
    found = [result.pixels.astype(int) for result in NetworkStyle(network(), options)(pixels, nothing)]
    for picture, made in zip(pixels, found, strict=True):
        there, back = (cv2.INTER_AREA, cv2.INTER_LANCZOS4) if scale > 1 else (cv2.INTER_LANCZOS4, cv2.INTER_AREA)
        seen = cv2.resize(picture, size[::-1], interpolation=there)
        with torch.no_grad():
            small = images.to_pixels(network()(images.to_tensor(seen)))
        assert np.abs(made - cv2.resize(small, (81, 60), interpolation=back)).max() <= 2


def test_a_style_scale_goes_with_mask_strength_and_colours(tmp_path, storage, weights_file):
    source, half, whole = noise(40, 60), np.zeros((40, 60, 3), np.uint8), {"method.style_scale": 2.0}
    half[:, 30:] = 255
    for name, pixels in (("a", source), ("mask", half)):
        images.write(tmp_path / f"{name}.png", pixels)
    for name, options in {
        "plain": Options(changes=whole),
        "mixed": Options(changes=whole, mask=tmp_path / "mask.png", strength=0.5, original_colours=True),
    }.items():
        outcomes([str(tmp_path / "a.png")], [str(weights_file)], tmp_path / f"{name}.png", options, storage)
    plain, mixed = (images.read(tmp_path / f"{name}.png").pixels for name in ("plain", "mixed"))
    assert np.array_equal(mixed[:, :30], source[:, :30]), "what is kept is as sharp as it was"
    wanted = images.mix(images.original_colours(plain, source), source, 0.5)
    assert np.abs(mixed[:, 30:].astype(int) - wanted[:, 30:]).max() <= 1
    with pytest.raises(UserError, match=r"style_scale 0\.0 is not above 0"):
        Options(changes={"method.style_scale": 0.0})


def test_strength_colours_alpha_and_profile(tmp_path, storage, weights_file):
    pixels, alpha, icc = 100 + noise(20, 24) // 8, noise(20, 24, 1)[..., 0], images.srgb()
    source, plain, mixed = (tmp_path / f"{name}.png" for name in ("source", "plain", "mixed"))
    images.write(source, pixels, alpha, icc)
    assert not outcomes([str(source)], [str(weights_file)], plain, Options(), storage)[0].failure
    options = Options(strength=0.25, original_colours=True)
    outcomes([str(source)], [str(weights_file)], mixed, options, storage)
    stylised, found = images.read(plain), images.read(mixed)
    for picture in (stylised, found):
        assert np.array_equal(picture.alpha, alpha) and picture.icc == icc
    luma = np.array([0.299, 0.587, 0.114])
    recoloured = np.clip(pixels + ((stylised.pixels.astype(float) - pixels) @ luma)[..., None], 0, 255)
    assert np.abs(found.pixels - (0.25 * recoloured + 0.75 * pixels)).max() <= 1


def test_what_transparency_hides_does_not_tint_a_resized_cut_out():
    pixels, alpha = np.zeros((4, 9, 3), np.uint8), np.zeros((4, 9), np.uint8)
    pixels[:, 3:], alpha[:, 3:] = (250, 120, 30), 255
    alpha[:, 6] = 90
    for size in (4, 20):
        found = batches.resized(images.Picture(pixels, alpha), size)
        assert found.alpha.shape == found.pixels.shape[:2] and 0 < (found.alpha > 8).sum() < found.alpha.size
        assert np.abs(found.pixels[found.alpha > 8].astype(int) - (250, 120, 30)).max() <= 16
    whole = batches.resized(images.Picture(pixels), 4)
    assert np.array_equal(whole.pixels, images.fit(pixels, 4)) and whole.alpha is None


@pytest.mark.parametrize(("order", "size", "expected"), [(1, None, 512), (-1, None, 512), (1, 0, 0), (-1, 300, 300)])
def test_a_painting_among_networks_sets_the_size(tmp_path, storage, order, size, expected):
    images.write(tmp_path / "mask.png", noise(8, 8))
    styles = ["great_wave@ff0000", "metzinger@0000ff"][::order]
    assert open_style(styles, Options(mask=tmp_path / "mask.png", size=size), storage).size == expected


def test_size_of_results(tmp_path, storage, weights_file):
    images.write(tmp_path / "a.png", noise(30, 60), noise(30, 60)[..., 0])
    outcomes([str(tmp_path / "a.png")], [str(weights_file)], tmp_path / "b.png", Options(size=24), storage)
    found = images.read(tmp_path / "b.png")
    assert found.pixels.shape == (12, 24, 3) and found.alpha.shape == (12, 24)


def test_odd_files_and_the_rest_go_on(tmp_path, storage, photographs, weights_file):
    (photographs / "0broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    (photographs / "notes.txt").write_text("not a picture")
    (photographs / "deeper").mkdir()
    images.write(photographs / "9.png", noise(1, 1))
    frames = [noise(8, 8)] * 2
    Image.fromarray(frames[0]).save(photographs / "a.gif", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    said = list(stylise_files([str(photographs)], [str(weights_file)], tmp_path / "out", Options(), storage))
    notes = [line for line in said if isinstance(line, str)]
    assert len(notes) == 2 and "deeper: skipped, a folder" in notes[0] and "notes.txt: skipped" in notes[1]
    failed = [o for o in said if not isinstance(o, str) and o.failure]
    assert [o.job.source.name for o in failed] == ["0broken.jpg"] and "\n" not in failed[0].failure
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.png", "1.png", "2.png", "9.png", "a.png"]
    assert [o.note for o in said if not isinstance(o, str) and o.note] == [
        f"{photographs / 'a.gif'}: holds several pictures; the first is stylised"
    ]


def test_an_interrupted_batch_goes_on(tmp_path, storage, photographs, weights_file):
    out, arguments = tmp_path / "out", ([str(photographs)], [str(weights_file)])
    work = stylise_files(*arguments, out, Options(size=16), storage)
    first = next(work)
    work.close()
    before = first.job.target.stat().st_mtime_ns
    said = list(stylise_files(*arguments, out, Options(size=16), storage))
    assert said[0].startswith(f"{first.job.target}: is there already")
    assert first.job.target.stat().st_mtime_ns == before
    assert len(list(out.iterdir())) == 3
    assert len(outcomes(*arguments, out, Options(size=16), storage, overwrite=True)) == 3


def test_where_results_go(tmp_path, photographs):
    one, out = photographs / "0.png", tmp_path / "out"
    images.write(photographs / "0.webp", noise(4, 4))
    (photographs / "0.bmp").write_bytes(b"")
    assert plan_jobs([str(one)], tmp_path / "x.jpg", False)[0] == [Job(one, tmp_path / "x.jpg")]
    assert plan_jobs([str(one)], out, False)[0] == [Job(one, out / "0.png")]
    jobs, _, failures = plan_jobs([str(photographs)], out, False)
    assert [job.target.name for job in jobs] == ["0.png", "0.webp", "1.png", "2.png"]
    assert len(failures) == 1 and "use two folders" in failures[0]
    _, _, failures = plan_jobs([str(one)], photographs, True)
    assert len(failures) == 1 and "its own place" in failures[0]
    for inputs, target, said in (
        ([str(photographs)], "x.png", "folder"),
        ([str(one)], "x.bmp", "bmp"),
        ([str(one)] * 2, "x.png", "folder"),
    ):
        with pytest.raises(UserError, match=said):
            plan_jobs(inputs, tmp_path / target, False)


def test_patterns_and_folders(tmp_path, photographs):
    assert [path.name for path in expand([f"{photographs}/[12].png"], images.SUFFIXES)[0]] == ["1.png", "2.png"]
    assert len(expand([str(photographs), f"{photographs}/*.png"], images.SUFFIXES)[0]) == 3
    assert expand(["absent.jpg"], images.SUFFIXES)[0][0].name == "absent.jpg"
    (photographs / ".writing-0.png").write_bytes(b"half of a pict")
    assert expand([str(photographs)], images.SUFFIXES)[1] == []
    for name in (str(tmp_path / "*.jpg"), str(tmp_path)):
        with pytest.raises(UserError, match="holds no pictures"):
            expand([name], images.SUFFIXES, "pictures")


def test_a_painting_is_optimised(tmp_path, storage, photographs):
    painting, out = assets.paintings()["starry_night"], tmp_path / "out.png"
    options = Options(size=64, changes=RANDOM | {"steps": 12})
    (found,) = outcomes([str(photographs / "0.png")], [str(painting)], out, options, storage)
    assert images.read(out).pixels.shape == (46, 64, 3)
    assert found.losses.shape == (12, 3) and found.losses[-1, 0] < found.losses[0, 0]
    objective = painting_config(["starry_night"], options, storage).method.objective
    assert (objective.convention, objective.style_weight) == ("relative", 50.0)
    content = images.fit(images.read(photographs / "0.png").pixels, 64)
    backbone = build(Alexnet(weights="random", normalise=False), 0, storage)
    work = images.to_tensor(images.fit(images.read(painting).pixels, 64))
    wanted = targets(backbone, objective, images.to_tensor(content), [work])
    start = loss(backbone, objective, wanted, images.to_tensor(content))
    assert math.isclose(found.losses[0, 0], float(start.total), rel_tol=1e-4)


def test_two_paintings_and_a_history(tmp_path, storage, photographs):
    options = Options(size=72, changes=RANDOM | {"blend": [0.7, 0.3]})
    styles, history = [str(path) for path in list(assets.paintings().values())[:2]], tmp_path / "losses.csv"
    found = outcomes([str(photographs)], styles, tmp_path / "out", options, storage, history=history)
    lines = history.read_text().splitlines()
    assert lines[0] == "photograph,evaluation,total,content,style" and len(lines) == 1 + 3 * 3
    assert float(lines[1].split(",")[2]) == found[0].losses[0, 0]
    (tmp_path / "out/1.png").unlink()  # as an interruption leaves it
    assert len(outcomes([str(photographs)], styles, tmp_path / "out", options, storage, history=history)) == 1
    assert sorted(history.read_text().splitlines()) == sorted(lines)
    (tmp_path / "note.csv").write_text("my,own\n")
    with pytest.raises(UserError, match=r"note\.csv: is there, and holds no losses"):
        outcomes([str(photographs)], styles, tmp_path / "other", options, storage, history=tmp_path / "note.csv")
    alone = Options(size=72, changes=RANDOM)
    (other,) = outcomes([str(photographs / "0.png")], styles[:1], tmp_path / "1.png", alone, storage)
    assert other.losses[0, 2] != found[0].losses[0, 2]


def test_a_history_keeps_the_losses_of_other_photographs(tmp_path, storage, photographs):
    first, second, *_ = sorted(photographs.iterdir())
    styles, history = [str(next(iter(assets.paintings().values())))], tmp_path / "losses.csv"
    options = Options(changes={**RANDOM, "steps": 1}, size=64)
    for source in (first, second, second):
        outcomes([str(source)], styles, tmp_path / "out", options, storage, history=history, overwrite=True)
    assert [line.split(",")[0] for line in history.read_text().splitlines()[1:]] == [str(first), str(second)]
    with pytest.raises(UserError, match=f"--history {tmp_path}: a folder is there; name a file"):
        outcomes([str(first)], styles, tmp_path / "other", options, storage, history=tmp_path)


def test_a_history_names_a_photograph_whose_name_is_no_text(tmp_path, storage):
    source = tmp_path / "caf\udce9.png"
    images.write(source, noise(48, 64))
    styles, options = [str(next(iter(assets.paintings().values())))], Options(changes={**RANDOM, "steps": 1}, size=64)
    for _ in range(2):
        arguments = [str(source)], styles, tmp_path / "out.png", options, storage
        outcomes(*arguments, history=tmp_path / "losses.csv", overwrite=True)
    (_, line) = (tmp_path / "losses.csv").read_text(errors="surrogateescape").splitlines()
    assert line.startswith(f"{source},1,")


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_picture(
    tmp_path, storage, photographs, weights_file, monkeypatch
):
    def deny(self, path, content):
        raise UserError(f"{self}: no permission")

    monkeypatch.setattr(Storage, "write", deny)
    monkeypatch.setattr(batches, "stylise_jobs", lambda *_: pytest.fail("was stylised"))
    with pytest.raises(UserError, match=f"{tmp_path}/out: no permission"):
        outcomes([str(photographs)], [str(weights_file)], tmp_path / "out", Options(), storage)


def test_names_of_styles_hold_in_any_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.safetensors").write_bytes(b"")
    (tmp_path / "ml5").mkdir()
    (tmp_path / "ml5/manifest.json").write_text("{}")
    here = f"{tmp_path}/w.safetensors"
    for name, expected in {
        "w.safetensors": here,
        "w.safetensors:starry": f"{here}:starry",
        "w.safetensors:a:0.7,w.safetensors:b:0.3": f"{here}:a:0.7,{here}:b:0.3",
        "w.safetensors:a@ff0000": f"{here}:a@ff0000",
        "ml5": f"{tmp_path}/ml5",
        "ml5@ff0000": f"{tmp_path}/ml5@ff0000",
        "great_wave": "great_wave",
        "4f5e:a:0.7,4f5e:b:0.3": "4f5e:a:0.7,4f5e:b:0.3",
    }.items():
        assert batches.absolute(name) == expected


def test_a_loss_without_end_is_a_failure(tmp_path, storage, photographs):
    changes = RANDOM | {"method.objective.style_weight": 1e38, "method.optimizer": "sgd", "steps": 4}
    options = Options(size=72, changes=changes)
    painting = str(assets.paintings()["starry_night"])
    (found,) = outcomes([str(photographs / "0.png")], [painting], tmp_path / "a.png", options, storage)
    assert "lower --style-weight" in found.failure and not (tmp_path / "a.png").exists()


def test_imported_weights_name_their_network(tmp_path, storage):
    file = tmp_path / "alexnet.pth"
    torch.save(dict(weights.random("alexnet", 1).tensors), file)
    config = painting_config(["x"], Options(changes={"method.backbone.weights": str(file)}), storage)
    assert config.method.backbone == Alexnet(weights=weights.import_weights(file, storage))
    assert config.method.objective.style_layers == ("stage1", "stage2", "stage3")
    gatys = painting_config(["x"], Options(like="gatys"), storage)
    assert gatys.method.objective == Objective(convention="gatys", content_weight=1e-3, style_weight=1.0)
    assert gatys.method.backbone == Vgg19() and gatys.steps == 500
    plain = painting_config(["x"], Options(changes={"method.objective.convention": "mean"}), storage)
    assert plain.method.objective == Objective(convention="mean") and plain.method.backbone == Vgg19()
    assert painting_config(["x"], Options(like="paper", precision="auto"), storage).precision == "float32"
    own = painting_config(["x"], Options(like="paper"), storage)
    assert replace(own.method, size=512) == OptimiseImage(shape="keep") and own.steps == 300


@pytest.mark.parametrize(
    ("shape", "octaves", "scales"),
    [((20, 28), 1, ()), ((64, 200), 2, ()), ((128, 160), 3, ()), ((256, 300), 3, (150,)), ((700, 512), 3, (350,))],
)
def test_sizes_of_an_optimisation_follow_the_picture(shape, octaves, scales):
    pixels = noise(*shape)
    found = sized(pixels, Options())
    assert found["method.objective.octaves"] == octaves and tuple(found["method.scales"]) == scales
    assert sized(pixels, Options(like="gatys")) == {"method.size": max(shape)}
    assert sized(pixels, Options(changes={"method.scales": [64]})).keys() == found.keys() - {"method.scales"}


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (2, {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 100\n"}),
        (1, {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "700",
             "memory/memory.stat": "total_inactive_file 100\n"}),
        (0, {"memory.max": "max", "memory.current": "700", "memory.stat": "inactive_file 100\n"}),
        (0, {}),
    ],
)  # fmt: skip
def test_a_container_has_no_more_memory_than_its_limit(tmp_path, monkeypatch, version, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_CONTROL", tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert memory.free_bytes() == (400 if version else 10**6)


def test_regions_of_a_large_mask_take_little_memory():
    colours = ("ff0000", "0000ff", "00ff00")
    pixels = noise(600, 800)
    tracemalloc.start()
    shares = Mask(pixels, colours).shares(60, 80)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * 600 * 800, "it was 144 bytes a pixel"
    wanted = np.array([list(bytes.fromhex(colour)) for colour in colours])
    for n, share in enumerate(shares):
        distances = np.abs(pixels[:, :, None].astype(int) - wanted).max(-1)
        mine = ((distances.argmin(-1) == n) & (distances[..., n] <= 64)).reshape(60, 10, 80, 10).mean((1, 3))
        assert np.abs(share - mine).max() < 1e-6


def test_what_a_masks_transparency_hides_is_not_stylised(tmp_path):
    whole = np.full((8, 8, 4), 255, np.uint8)
    whole[:, 4:, 3] = 0
    Image.fromarray(whole).save(tmp_path / "mask.png")
    for colours in ([""], ["ffffff"]):
        (share,) = regions.open_mask(tmp_path / "mask.png", colours).shares(8, 8)
        assert share[:, :4].min() == 1 and share[:, 4:].max() == 0


def test_the_latest_run_is_a_style(tmp_path, storage):
    with pytest.raises(UserError, match="no runs of any task"):
        open_style(["latest"], Options(), storage)


@pytest.mark.parametrize(("height", "width"), [(40, 52), (8, 9), (20, 26)])
def test_a_grey_mask_is_a_share(height, width):
    grey = noise(20, 26)[..., :1].repeat(3, -1)
    (share,) = Mask(grey, [""]).shares(height, width)
    assert share.shape == (height, width) and 0 <= share.min() and share.max() <= 1
    assert np.isclose(share.mean(), grey.mean() / 255, atol=0.02)
    photograph, made = noise(height, width, 1), noise(height, width, 2)
    mixed = compose(photograph, [made], [share])
    naive = share[..., None] * made + (1 - share[..., None]) * photograph
    assert np.abs(mixed - naive).max() < 0.51


@pytest.mark.parametrize("like", ["", "gatys", "johnson", "paper"])
def test_help_names_the_defaults_of_each_preset(storage, like):
    config = painting_config(["great_wave"], Options(like=like), storage)
    method, hints = config.method, get_type_hints(Knobs, include_extras=True)
    pooling, weight = method.backbone.pooling, method.objective.content_weight
    for option, value in {"evaluations": config.steps, "content_weight": weight, "pooling": pooling}.items():
        (told,) = (mark.help for mark in hints[option].__metadata__ if hasattr(mark, "help"))
        usual, *others = told.partition("(default: ")[2].rstrip(").").split("; ")
        (named,) = [other.split(" ")[0] for other in others if like and like in other] or [usual]
        assert named == str(value).removesuffix(".0")


def test_what_style_means(tmp_path, storage, weights_file):
    assert isinstance(open_style([str(weights_file)], Options(), storage), NetworkStyle)
    painting = str(assets.paintings()["starry_night"])
    for styles, options, said in (
        (["no_such"], Options(), "no such file"),
        (["0123456789"], Options(), "no run begins"),
        ([str(weights_file), painting], Options(), "no painting"),
        ([str(weights_file)], Options(changes={"method.start": "noise"}), "is of paintings"),
        ([painting], Options(tile=64, changes=RANDOM), "for networks"),
        ([painting], Options(changes={"method.backbone.weights": "absent.pth"}), "'absent.pth' is none of imagenet"),
        ([painting], Options(changes=RANDOM | {"method.start": "nose"}), "method.start"),
        ([painting], Options(changes=RANDOM | {"blend": [1, 2]}), "blend"),
        ([painting], Options(changes={"method.backbone.weights": "f" * 64}), "retable style weights FILE"),
        ([painting], Options(device="cuda:99", changes=RANDOM), "cannot be used here"),
        ([str(weights_file)], Options(device="meta"), "device 'meta' cannot be used here"),  # it computes no values
        ([str(weights_file)], Options(device="privateuseone"), "cannot be used here"),  # a module that is not there
        (["great_wave:x"], Options(), "^great_wave:x: great_wave has one style alone"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            open_style(styles, options, storage)
        assert "\n" not in str(caught.value)
    for wrong in ({"strength": 1.5}, {"size": -1}):
        with pytest.raises(UserError, match="|".join(wrong)):
            Options(**wrong)


def test_a_painting_is_no_network(tmp_path, storage):
    for name in (str(assets.paintings()["starry_night"]), "starry_night.jpg"):
        with pytest.raises(UserError, match="a painting, where a network is needed"):
            find_network(name, storage)


def test_the_zoo_has_the_great_wave(storage):
    assert next(iter(zoo("style"))) == "great_wave"  # what is asked for where nothing is named
    for name, path in zoo("style").items():
        assert isinstance(find_network(name, storage), TransformerNetwork)
        assert path.stat().st_size <= 2e6
        with safe_open(path, "pt") as file:
            provenance = json.loads(file.metadata()["provenance"])
        assert {"config", "data_description", "device", "steps", "seconds", "licence"} <= set(provenance)


def test_networks_of_the_zoo_that_were_trained_apart_are_not_blended(storage):
    first, second, *_ = zoo("style")
    with pytest.raises(UserError, match="only styles that were trained together blend") as caught:
        find_network(f"{first}:0.5,{second}:0.5", storage)
    assert "\n" not in str(caught.value)


def test_a_row_with_a_comma_in_its_label_is_no_blend(storage):
    with pytest.raises(UserError, match="has no table style/figure1"):
        find_network("style/figure1/version 2, coffee", storage)


def test_sheet():
    pictures = [(f"epoch {number}", noise(30, 40, number)) for number in range(5)]
    found = sheet(pictures, columns=3)
    line = found.shape[0] // 2 - 30
    assert found.shape == (2 * (30 + line), 120, 3) and line >= 10
    assert np.array_equal(found[30 + line : 60 + line, 40:80], pictures[4][1])
    assert found[30 : 30 + line, :40].min() < 100 and (found[30 + line :, 80:] == 255).all()


@pytest.mark.slow
def test_ray_gives_the_same(tmp_path, storage, photographs, weights_file):
    (photographs / "1broken.jpg").write_bytes(b"")
    arguments = [str(photographs)], [str(weights_file)]
    here = outcomes(*arguments, tmp_path / "here", Options(), storage)
    there = outcomes(*arguments, tmp_path / "there", Options(), storage, ray=True)
    assert [o.job.source for o in there] == sorted(photographs.iterdir())
    assert {o.job.source: bool(o.failure) for o in here} == {o.job.source: bool(o.failure) for o in there}
    for path in (tmp_path / "here").iterdir():
        assert np.array_equal(images.read(path).pixels, images.read(tmp_path / "there" / path.name).pixels)


@pytest.mark.parametrize("tile", [0, 32])
def test_a_picture_that_free_memory_does_not_hold_is_refused(weights_file, storage, monkeypatch, tile):
    style = open_style([str(weights_file)], Options(tile=tile), storage)
    needed = needed_bytes(style.network, 40, 60)
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr("psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free, total=10**15))
        if fits:
            assert style([noise(40, 60)], nothing)[0].pixels.shape == (40, 60, 3)
            continue
        with pytest.raises(UserError, match=r"60 x 40 pixels need .* GB of memory, .* are free; --size 56 fits"):
            style([noise(40, 60)], nothing)


def test_a_result_that_is_larger_than_any_picture_is_refused(tmp_path, storage, photographs, weights_file):
    for size, said in ((2_000_000, batches.TOO_LARGE), (60, "")):
        found = outcomes([str(photographs)], [str(weights_file)], tmp_path / "out", Options(size=size), storage)
        assert [outcome.failure for outcome in found] == [said and f"{outcome.job.source}: {said}" for outcome in found]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_photographs_that_memory_does_not_hold_together_are_made_one_by_one(monkeypatch, scale):
    style = NetworkStyle(network(), Options(changes={"method.style_scale": scale}))
    photographs = [noise(40, 60, seed) for seed in range(4)]
    together = [result.pixels.astype(int) for result in style(photographs, nothing)]
    needed = needed_bytes(style.network, round(40 / scale), round(60 / scale))
    memory = SimpleNamespace(available=needed, total=10**15)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    alone = [result.pixels for result in style(photographs, nothing)]
    assert max(np.abs(a - b).max() for a, b in zip(together, alone, strict=True)) <= 1
    memory.available = needed - 1
    with pytest.raises(UserError, match=r"^60 x 40 pixels need .* GB of memory, .* are free; --size 56 fits"):
        style(photographs, nothing)
