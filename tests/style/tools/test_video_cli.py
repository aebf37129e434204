"""`retable style video`, from the options to the file."""

from fractions import Fraction

import av
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from retable.platform import console
from retable.platform.errors import UserError
from retable.tasks.style.files import images
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.tools.pictures import stylise
from retable.tasks.style.tools.video.video_cli import flicker_lines, video
from tests.style.tools.test_video import far, look, make, sound

app = typer.Typer()
app.command()(video)


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """What every name of a style means here."""
    torch.manual_seed(0)
    made = TransformerNetwork(filters=4).eval()
    known = {"toy": made, "other": TransformerNetwork(filters=4).eval()}
    with torch.no_grad():
        known["other"].layers[-1].convolution.weight *= 50
        known["other"].layers[-1].convolution.bias += 128
    monkeypatch.setattr(stylise, "find_network", lambda name, storage: known.get(name) or stop(name))
    return made


def stop(name):
    raise UserError(f"--style {name}: no such file")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_video_is_stylised_and_what_was_done_is_said(tmp_path, network):
    source, target = make(tmp_path / "in.mp4", 7, (45, 63), tracks=1, kind="yuv444p"), tmp_path / "out.mp4"
    result = run(source, target, "--style", "toy", "--batch", 3)
    assert result.exit_code == 0 and f"{target}: 7 frames in" in result.output and "frames/s" in result.output
    times, pictures, *_ = look(target)
    assert times == look(source)[0] and pictures[0].shape == (45, 63, 3) and sound(target) == sound(source)
    image = torch.from_numpy(look(source)[1][3]).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        alone = (network(image).clamp(0, 1) * 255)[0].permute(1, 2, 0).numpy()
    assert np.abs(pictures[3] - alone).mean() < 6, "up to what H.264 loses"


def test_strength_zero_is_the_video_itself(tmp_path):
    source, target = make(tmp_path / "in.mp4", 3), tmp_path / "out.mp4"
    assert run(source, target, "--style", "toy", "--strength", 0, "--size", 32).exit_code == 0
    assert look(target)[1][0].shape == (24, 32, 3)
    assert np.abs(look(target)[1][0][2, 2].astype(int) - 250).max() < 12, "the bright corner"


@pytest.mark.parametrize("steady", [pytest.param("off", marks=pytest.mark.slow), "flow"])
def test_the_video_is_shown_beside_the_result(tmp_path, steady):
    source, words = make(tmp_path / "in.mp4", 5), ("--style", "toy", "--steady", steady, "--crf", 0)
    assert run(source, tmp_path / "alone.mp4", *words).exit_code == 0
    assert run(source, tmp_path / "both.mp4", *words, "--beside").exit_code == 0
    before, alone, both = (look(path)[1] for path in (source, tmp_path / "alone.mp4", tmp_path / "both.mp4"))
    assert len(both) == len(before) == 5
    for frame, made, shown in zip(before, alone, both, strict=True):
        width = frame.shape[1]
        assert shown.shape == (frame.shape[0], 2 * width, 3)
        for half, expected in ((shown[:, :width], frame), (shown[:, width:], made)):
            away = np.abs(half.astype(int) - expected)[:, 2:-2]  # chroma of the seam is shared by both
            assert away.mean() < 2.5, "up to what the encoder's colours lose"


@pytest.mark.parametrize("steady", [pytest.param("statistics", marks=pytest.mark.slow), "flow"])
def test_steadiness_is_measured_against_none(tmp_path, steady):
    source = make(tmp_path / "in.mp4", 6)
    result = run(source, tmp_path / "out.mp4", "--style", "toy", "--steady", steady, "--measure")
    lines = [line for line in result.output.splitlines() if "flicker" in line]
    assert len(lines) == 3
    assert all(said in "".join(lines) for said in ("source:", "--steady off:", f"--steady {steady}:"))
    plain = run(source, tmp_path / "off.mp4", "--style", "toy", "--measure")
    assert sum("flicker" in line for line in plain.output.splitlines()) == 2


def test_flicker_is_said_with_units():
    found = {
        "source": {"static_change": 0.5, "warp_error": 0.0141},
        "result": {"static_change": 3.8, "warp_error": 0.048},
    }
    first, second = flicker_lines(found, "flow")
    assert first.endswith("source: static pixels 0.50/255, warp error 0.0141")
    assert "--steady flow: static pixels 3.80/255, warp error 0.0480" in second


def test_mistakes_are_one_line(tmp_path):
    source = make(tmp_path / "in.mp4", 3)
    with pytest.raises(UserError, match=r"nowhere\.mp4: no such file"):
        run(tmp_path / "nowhere.mp4", tmp_path / "out.mp4", "--style", "toy")
    with pytest.raises(UserError, match="--style toyy: no such file"):
        run(source, tmp_path / "out.mp4", "--style", "toyy")
    assert run(source, tmp_path / "out.mp4", "--style", "toy", "--steady", "very").exit_code == 2
    with pytest.raises(UserError, match="written as"):
        run(source, tmp_path / "out.avi", "--style", "toy")


@pytest.mark.parametrize("interactive", [False, True])
def test_a_bar_or_lines_is_decided_as_by_every_command(tmp_path, monkeypatch, interactive):
    """By the console, which knows FORCE_COLOR, NO_COLOR and dumb terminals; not by `sys.stdout.isatty`."""
    monkeypatch.setattr(console, "EVERY", 0.0)
    monkeypatch.setattr(console.console, "is_interactive", interactive)
    result = run(make(tmp_path / "in.mp4", 5), tmp_path / "out.mp4", "--style", "toy")
    assert ("/5 frames" in result.output) != interactive


def test_a_long_video_says_how_far_it_is_where_there_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(console, "EVERY", 0.0)
    result = run(make(tmp_path / "in.mp4", 5), tmp_path / "out.mp4", "--style", "toy")
    lines = [line for line in result.output.splitlines() if "/5 frames" in line]
    assert len(lines) == 5 and "frames/s" in lines[0] and "left" in lines[0]


def test_frames_read_with_opencv_keep_their_sound(tmp_path):
    source = make(tmp_path / "in.mp4", 5, tracks=1)
    assert run(source, tmp_path / "out.mp4", "--style", "toy", "--reader", "opencv").exit_code == 0
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 5
    assert sound(tmp_path / "out.mp4") == sound(source)


def test_a_mask_and_a_part(tmp_path):
    images.write(tmp_path / "mask.png", np.repeat(np.array([[0, 0, 255, 255]], np.uint8)[..., None], 3, 2))
    source, words = make(tmp_path / "in.mp4", 10, rate=Fraction(25)), ["--style", "toy", "--crf", 1, "--start", 0.2]
    plain, masked = tmp_path / "plain.mp4", tmp_path / "masked.mp4"
    assert run(source, plain, *words, "--duration", 0.12).exit_code == 0
    assert run(source, masked, *words, "--duration", 0.12, "--mask", tmp_path / "mask.png").exit_code == 0
    taken, whole, mixed = (look(path)[1] for path in (source, plain, masked))
    assert len(whole) == len(mixed) == 3
    left, right = np.s_[:, :16], np.s_[:, 48:]
    for before, stylised, found in zip(taken[5:], whole, mixed, strict=False):
        assert far(found[right], stylised[right]) < 4 and far(found[left], before[left]) < 4
        assert far(stylised[left], before[left]) > 12


def test_strokes_of_a_network_are_as_large_as_is_said(tmp_path, network):
    source = make(tmp_path / "in.mp4", 3)
    for number, scale in enumerate((1, 4)):
        words = ["--style", "other", "--style-scale", scale, "--crf", 1]
        assert run(source, tmp_path / f"{number}.mp4", *words).exit_code == 0
    plain, large = (look(tmp_path / f"{number}.mp4")[1][2] for number in (0, 1))
    assert plain.shape == large.shape == (48, 64, 3) and far(plain, large) > 1


def regions(path):
    """A mask: red at the left, blue in the middle, black at the right."""
    map_of = np.zeros((48, 64, 3), np.uint8)
    map_of[:, :16], map_of[:, 16:40] = (255, 0, 0), (0, 0, 255)
    images.write(path, map_of)
    return path


@pytest.mark.parametrize("steady", ["off", "flow"])
def test_regions_of_a_mask_have_their_own_styles(tmp_path, steady):
    source, mask = make(tmp_path / "in.mp4", 5), regions(tmp_path / "regions.png")
    words, made = ["--crf", 1, "--steady", steady, "--original-colours", "--strength", 0.9], {}
    for name in ("toy", "other"):
        assert run(source, tmp_path / f"{name}.mp4", "--style", name, *words).exit_code == 0
    both = ["--style", "toy@ff0000", "--style", "other@#0000FF", "--mask", mask]
    assert run(source, tmp_path / "both.mp4", *both, *words).exit_code == 0
    made = {name: look(tmp_path / f"{name}.mp4")[1] for name in ("in", "toy", "other", "both")}
    for photograph, toy, other, found in zip(*made.values(), strict=True):
        assert far(found[:, :12], toy[:, :12]) < 4 and far(found[:, 20:36], other[:, 20:36]) < 4
        assert far(found[:, 44:], photograph[:, 44:]) < 7 < 10 < far(other[:, 44:], photograph[:, 44:])
        assert far(toy, other) > 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--style", "toy@ff0000"], "needs --mask"),
        (["--style", "toy", "--style", "other"], "several --style are of a mask's regions"),
        (["--style", "toy@ff0000", "--style", "other", "--mask", "regions.png"], "give each its own colour"),
        (["--style", "toy@ff0000", "--style", "nobody@0000ff", "--mask", "regions.png"], "--style nobody"),
    ],
)
def test_regions_that_do_not_fit_are_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    regions(tmp_path / "regions.png")
    source = make(tmp_path / "in.mp4", 2)
    with pytest.raises(UserError, match=said):
        run(source, tmp_path / "out.mp4", *words)
