"""Videos by version 1: what a frame is begun with, that frames which are begun so hold still, and the command."""

import cv2
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.files import assets, images
from retable.tasks.style.networks import tiling, transformer
from retable.tasks.style.tools.pictures.regions import Mask
from retable.tasks.style.tools.pictures.stylise import Options, open_paintings
from retable.tasks.style.tools.video.painted import SHARE, Painter
from retable.tasks.style.tools.video.steady import Regional, Stylist, stylise_stream
from retable.tasks.style.tools.video.video import Piece
from retable.tasks.style.tools.video.video_cli import video
from tests.style.tools.test_steady import flicker
from tests.style.tools.test_video import look, make, sound

torch.set_num_threads(1)
app = typer.Typer()
app.command()(video)


def painter(tmp_path, evaluations=12):
    options = Options(size=0, changes={"steps": evaluations})
    return Painter(open_paintings([assets.paintings()["great_wave"]], options, Storage.open(tmp_path)))


def photograph(height=64, width=96):
    picture = images.read(assets.photographs()["coffee"]).pixels
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def piece(*pictures, shot=0):
    return Piece(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), shot)


def test_a_frame_is_begun_with_the_moved_result_and_with_itself_where_something_new_is(tmp_path):
    wide = cv2.GaussianBlur(photograph(96, 160), (0, 0), 1.5)
    before, after = wide[:, 8:136], wide[:, :128]  # the camera turns left by eight pixels
    result = 255 - before
    begun = painter(tmp_path).begun(after, before, result).astype(int)
    inner = np.s_[16:-16, 24:-16]
    gap = np.abs(begun - (255 - after.astype(int)))[inner]
    own = np.abs(begun - after)[inner].max(-1) == 0
    assert np.median(gap) <= 3, "most of it is what was made of it before"
    assert own.mean() < 0.3
    assert (begun[:, :4] == after[:, :4]).mean() > 0.8, "what has come into sight"


@pytest.mark.slow
def test_frames_that_follow_hold_still_and_take_a_third(tmp_path):
    torch.manual_seed(0)
    base = photograph()
    noise = np.random.default_rng(0)
    frames = [np.clip(base + noise.normal(0, 1.5, base.shape), 0, 255).astype(np.uint8) for _ in range(3)]
    following = painter(tmp_path, 30)  # a first frame that is far from done goes on in the next ones
    steady = following(piece(*frames)).permute(0, 2, 3, 1).numpy()
    alone = np.stack([painter(tmp_path, 30)(piece(frame))[0].permute(1, 2, 0).numpy() for frame in frames])
    assert np.array_equal(steady[0], alone[0]), "a shot's first frame is what a picture would be"
    assert flicker(frames, list(steady))["warp_error"] < 0.8 * flicker(frames, list(alone))["warp_error"]
    assert following.style.config.steps // SHARE == 10
    again = following(piece(frames[0], shot=1))[0].permute(1, 2, 0).numpy()
    assert np.array_equal(again, alone[0]), "another shot begins anew"


@pytest.mark.slow
@pytest.mark.parametrize("steady", ["off", "flow"])
def test_a_frame_after_a_cut_is_begun_anew(tmp_path, steady):
    frames = [photograph(), 255 - photograph() // 4]
    batches = iter([torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)])
    made = torch.cat(list(stylise_stream(painter(tmp_path, 6), steady)(batches)))
    alone = [painter(tmp_path, 6)(piece(frame))[0] for frame in frames]
    assert torch.equal(made, torch.stack(alone)), "as a picture of its own would be"


def test_the_command_paints_a_video(tmp_path):
    source, target = make(tmp_path / "in.mp4", 3, (48, 64), tracks=1), tmp_path / "out.mp4"
    arguments = [str(source), str(target), "--by", "version1", "--style", "great_wave", "--evaluations", "6"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "3 frames" in result.output
    assert len(look(target)[1]) == 3 and sound(target) == sound(source)


def test_paintings_of_regions(tmp_path):
    mask = np.zeros((48, 64, 3), np.uint8)
    mask[:, :24], mask[:, 24:44] = (255, 0, 0), (0, 0, 255)
    stylists = [painter(tmp_path, 1), painter(tmp_path, 2)]
    pictures = piece(photograph(48, 64))
    found = Regional(stylists, Mask(mask, ["ff0000", "0000ff"]))(pictures)
    first, second = (Painter(stylist.style)(pictures) for stylist in stylists)
    assert torch.equal(found[..., :24], first[..., :24]) and torch.equal(found[..., 24:44], second[..., 24:44])
    assert torch.equal(found[..., 44:], pictures.pictures[..., 44:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "version1", "--style", "starry_night", "--workers", "1"], "leave out --workers"),
        (["--by", "version1", "--style", "nobody"], "--style nobody: by version1, a picture's file or one of"),
        (["--style", "great_wave", "--evaluations", "3"], "steps is of paintings; add --by version1"),
        (["--by", "version1", "--style", "great_wave", "--history", "a.csv"], "--history is of one picture"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, options, message):
    source = make(tmp_path / "in.mp4", 2)
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(app, [str(source), str(tmp_path / "out.mp4"), *options], catch_exceptions=False)


def test_a_frame_that_memory_does_not_hold_is_one_line(tmp_path, monkeypatch):
    def short(*given, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9000000000 bytes")

    monkeypatch.setattr(Painter, "optimise", short)
    with pytest.raises(UserError, match=r"^a frame does not fit into memory; use a smaller --size$"):
        painter(tmp_path)(piece(photograph()))
    monkeypatch.setattr(tiling, "stylise", short)
    frames = piece(photograph(), photograph())
    with pytest.raises(UserError, match=r"^2 frames do not fit into memory; use --batch 1, or a smaller --size$"):
        Stylist(transformer.TransformerNetwork(4))(frames)
