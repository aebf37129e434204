"""Steadiness: shots, statistics fixed over them, the blend along the motion, and how flicker is measured."""

import math

import cv2
import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.tasks.style.networks import tiling, transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.tools.video import steady
from retable.tasks.style.tools.video.steady import (
    Finish,
    Flicker,
    Stylist,
    by_shot,
    measured,
    smooth,
    stylise_stream,
)
from retable.tasks.style.tools.video.video import Piece


def flicker(frames, stylised):
    """Measure how much a stylised video flickers."""
    meter = Flicker()
    for frame, picture in zip(frames, stylised, strict=True):
        meter.add(frame, picture)
    return meter.result()


def scene(seed, height=48, width=64):
    """A smooth random picture."""
    noise = np.random.default_rng(seed).uniform(0, 255, (height // 8, width // 8, 3)).astype(np.float32)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8)


def stack(pictures):
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def split(pictures, batch):
    return iter(stack(pictures).split(batch))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    made = TransformerNetwork(filters=4).eval()
    last = made.layers[-1].convolution
    with torch.no_grad():  # an untrained network's levels are near 0: spread them over 0 to 255
        last.weight *= 50
        last.bias += 128
    return made


@pytest.mark.parametrize("batch", [1, 3, 5, 40])
@pytest.mark.parametrize("lengths", [(12,), (10, 3, 9), (1, 1, 10), (5, 2)])
def test_pieces_lie_within_shots_and_carry_their_first_pictures(batch, lengths):
    rng = np.random.default_rng(0)
    flat = [(250, 20, 20), (20, 20, 250), (20, 250, 20)]
    shots = [
        [np.clip(rng.normal(flat[n], 3, (16, 24, 3)), 0, 255).astype(np.uint8) for _ in range(length)]
        for n, length in enumerate(lengths)
    ]
    joined = [picture for shot in shots for picture in shot]
    pieces = list(by_shot(split(joined, batch), look_ahead=4))
    assert torch.equal(torch.cat([piece.pictures for piece in pieces]), stack(joined)), "all, in order"
    assert max(len(piece.pictures) for piece in pieces) <= batch
    for number, shot in enumerate(shots):
        mine = [piece for piece in pieces if piece.shot == number]
        assert sum(len(piece.pictures) for piece in mine) == len(shot)
        assert all(torch.equal(piece.reference, stack(shot[:4])) for piece in mine)


def test_only_the_start_of_a_shot_waits():
    given = 0

    def batches():
        nonlocal given
        for picture in [scene(0)] * 30:
            given += 1
            yield stack([picture])

    waits = [given - done for done, _ in enumerate(by_shot(batches(), look_ahead=4))]
    assert max(waits) == 4 and waits[-1] == 1


def test_noise_and_motion_are_no_cut_and_another_scene_is():
    rng = np.random.default_rng(0)
    plain = scene(1)
    noisy = np.clip(plain + rng.normal(0, 8, plain.shape), 0, 255).astype(np.uint8)
    histograms = [steady.colour_histogram(p) for p in (plain, noisy, np.roll(plain, 9, 1), 255 - plain // 4)]
    assert histograms[0].sum() == pytest.approx(1)
    assert [steady.is_cut(histograms[0], other) for other in histograms] == [False, False, False, True]


def moving(width=320, count=6):
    """A static scene, at whose left end a bright block grows."""
    pictures = [scene(3, 32, width).copy() for _ in range(count)]
    for number, picture in enumerate(pictures):
        picture[:, : 4 + 6 * number] = 255
    return pictures


def test_fixed_statistics_leave_alone_what_is_far_from_a_change(network):
    """Without them every normalisation couples all pixels; with them the network is local (about 111 pixels)."""
    found = {}
    for name in ("off", "statistics"):
        made = torch.cat(list(stylise_stream(Stylist(network), name)(split(moving(), 4))))
        far = made[..., 200:].float()
        found[name] = (far[1:] - far[:-1]).abs().mean().item()
    assert found["statistics"] == 0 and found["off"] > 0.1


def test_the_blend_flickers_less_on_a_noisy_static_clip(network):
    rng = np.random.default_rng(0)
    light = [0, 6, -6, 4, -5, 7]
    noisy = [np.clip(scene(5) + rng.normal(0, 2, (48, 64, 3)) + shift, 0, 255).astype(np.uint8) for shift in light]
    still = [scene(5)] * 6
    found = {}
    for name in ("off", "statistics", "flow"):
        made = torch.cat(list(stylise_stream(Stylist(network), name)(split(noisy, 4))))
        found[name] = flicker(still, list(made.permute(0, 2, 3, 1).numpy()))["static_change"]
    assert found["flow"] < 0.8 * min(found["off"], found["statistics"])


def test_statistics_are_those_of_the_reference(network):
    pictures = stack([scene(n) for n in range(3)])
    one = Piece(pictures[:1], 0, pictures[:1])
    alone = Stylist(network)(Piece(pictures[:1]))
    assert (Stylist(network)(one).int() - alone.int()).abs().max() <= 1, "a picture's own statistics change nothing"
    stylist = Stylist(network)
    stylist(Piece(pictures, 0, pictures))
    for found, wanted in zip(stylist.statistics, network.statistics(pictures.float() / 255), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_batches_do_not_change_a_frame(network):
    pictures = [scene(n // 6) for n in range(11)]
    made = [torch.cat(list(stylise_stream(Stylist(network), "statistics")(split(pictures, n)))) for n in (1, 4, 11)]
    assert all((other.int() - made[0].int()).abs().max() <= 1 for other in made[1:])


def test_colours_and_strength(network):
    pictures = stack([scene(0), scene(1)])
    plain = Stylist(network)(Piece(pictures))
    assert torch.equal(Stylist(network, finish=Finish(strength=0.0))(Piece(pictures)), pictures)
    half = Stylist(network, finish=Finish(strength=0.5))(Piece(pictures))
    assert (half.float() - (plain.float() + pictures.float()) / 2).abs().max() <= 0.5
    luma = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    kept = Stylist(network, finish=Finish(original_colours=True))(Piece(pictures)).float()
    inside = ((kept > 0) & (kept < 255)).all(1)
    difference = (kept - pictures.float()).diff(dim=1).abs().amax(1)
    assert inside.float().mean() > 0.2 and difference[inside].max() <= 1, "colour differences are the photograph's"
    assert ((kept - plain.float()) * luma).sum(1).abs()[inside].max() <= 1, "the luma is the result's"


@pytest.mark.parametrize("steady", ["off", "statistics"])
def test_a_style_scale_works_at_that_part_of_the_size(network, steady):
    frames = [scene(seed) for seed in (0, 0)]
    small = [cv2.resize(frame, (32, 24), interpolation=cv2.INTER_AREA) for frame in frames]
    found = torch.cat(list(stylise_stream(Stylist(network, scale=2.0), steady)(split(frames, 2))))
    made = torch.cat(list(stylise_stream(Stylist(network), steady)(split(small, 2)))).permute(0, 2, 3, 1).numpy()
    wanted = stack([cv2.resize(each, (64, 48), interpolation=cv2.INTER_LANCZOS4) for each in made])
    assert torch.equal(found, wanted)


def test_identical_frames_do_not_flicker():
    assert flicker([scene(0)] * 4, [scene(1)] * 4) == {"static_change": 0, "warp_error": 0}


def test_static_change_is_the_mean_over_static_pixels():
    still, one, other = scene(0), scene(1) // 2, scene(1) // 2 + 7
    assert flicker([still] * 3, [one, other, one])["static_change"] == pytest.approx(7)
    assert flicker([still] * 2, [one, other])["warp_error"] == pytest.approx(7 / 255, rel=1e-6)
    half = still.copy()
    half[:, 32:] ^= 128
    jump = one.copy()
    jump[:, 32:] += 50
    jump[:, :32] += 3
    assert flicker([still, half], [one, jump])["static_change"] == pytest.approx(3), "what moves does not count"
    assert math.isnan(Flicker().result()["static_change"])


@pytest.mark.parametrize(("across", "down"), [(3, 0), (0, -2), (4, 5)])
def test_a_translation_has_no_warp_error(across, down, monkeypatch):
    """The stylised video moves exactly as its source: nothing flickers, and naive differences would say it does."""
    large, styled = scene(2, 96, 128), scene(7, 96, 128)
    views = [np.s_[20 + down * n : 68 + down * n, 20 + across * n : 84 + across * n] for n in range(4)]
    frames, stylised = [large[view] for view in views], [styled[view] for view in views]
    naive = np.abs(stylised[1].astype(int) - stylised[0]).mean() / 255
    assert flicker(frames, stylised)["warp_error"] < 0.1 * naive
    exact = {True: (across, down), False: (-across, -down)}
    calls = iter([True, False] * 3)
    monkeypatch.setattr(steady, "optical_flow", lambda a, b: np.full((*a.shape[:2], 2), exact[next(calls)], np.float32))
    assert flicker(frames, stylised)["warp_error"] == pytest.approx(0, abs=1e-6), "with the true flow, exactly"


def test_the_flow_of_a_translation_is_found():
    large = scene(2, 96, 128)
    flow = steady.optical_flow(large[20:68, 23:87], large[20:68, 20:84])
    assert np.median(flow, (0, 1)) == pytest.approx([3, 0], abs=0.1)


def test_warp_reads_where_the_flow_points():
    picture = scene(4).astype(np.float32)
    flow = np.zeros((48, 64, 2), np.float32)
    flow[..., 0], flow[..., 1] = 2, -1
    assert np.array_equal(steady.warp(picture, flow)[1:, :-2], picture[:-1, 2:])
    flow[..., 0], flow[..., 1] = 0.5, 0
    between = (picture[:, :-1] + picture[:, 1:]) / 2
    assert steady.warp(picture, flow)[:, :-1] == pytest.approx(between, abs=1e-3)


def test_hidden_pixels_are_those_whose_flows_do_not_cancel_out_or_that_come_from_outside():
    flow = np.full((10, 12, 2), (3, 0), np.float32)
    back = -flow
    assert steady.is_visible(flow, back)[:, :9].all() and not steady.is_visible(flow, back)[:, 9:].any()
    back[4, 7] = 0  # |3|^2 > 0.01 * 3^2 + 0.5
    assert not steady.is_visible(flow, back)[4, 4] and steady.is_visible(flow, back)[4, 5]
    back[4, 7] = (-2.5, 0)  # 0.25 < 0.01 (9 + 6.25) + 0.5
    assert steady.is_visible(flow, back)[4, 4]


def test_the_blend_is_a_running_mean_where_nothing_moves_and_starts_anew_with_a_shot():
    still = stack([scene(0)])
    values = [100, 140, 120, 200]
    pairs = [(Piece(still, n // 3), torch.full_like(still, value)) for n, value in enumerate(values)]
    made = [int(result.unique()) for _, result in smooth(iter(pairs))]
    assert made == [100, 104, 106, 200]


def test_what_moves_by_parts_of_a_pixel_stays_sharp(monkeypatch):
    """Waves of five pixels that move by half a pixel a frame: read bilinearly they lose half of their contrast."""

    def wave(n):
        columns = np.arange(64) - 0.5 * n
        level = 128 + 50 * np.sin(2 * np.pi * columns / 5)
        return np.repeat(np.rint(level)[None, :, None], 48, 0).repeat(3, 2).astype(np.uint8)

    direction = iter([-0.5, 0.5] * 20)
    still = np.zeros((48, 64, 1), np.float32)
    monkeypatch.setattr(steady, "optical_flow", lambda a, b: np.dstack([still + next(direction), still]))
    pieces = [Piece(stack([wave(n)])) for n in range(20)]
    *_, (_, last) = smooth((piece, piece.pictures) for piece in pieces)
    inside = np.s_[..., 25:60]  # what came in from the left is not known for as long
    found, wanted = last[inside].float(), pieces[-1].pictures[inside].float()
    assert found.std() / wanted.std() == pytest.approx(1, abs=0.07)
    assert (found - wanted).abs().max() < 5


def test_what_a_mask_keeps_of_the_photograph_is_not_blended():
    rng = np.random.default_rng(0)
    frames = [np.clip(scene(5) + rng.normal(0, 4, (48, 64, 3)), 0, 255).astype(np.uint8) for _ in range(4)]
    painted = [frame.copy() for frame in frames]
    for picture in painted:
        picture[:, :32] = 255 - picture[:, :32]
    pairs = [(Piece(stack([frame])), stack([picture])) for frame, picture in zip(frames, painted, strict=True)]
    made = torch.cat([result for _, result in smooth(iter(pairs))]).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(made[:, :, 32:], np.stack(frames)[:, :, 32:])
    assert not np.array_equal(made[3, :, :32], painted[3][:, :32])


def test_what_is_even_and_moves_is_not_static(monkeypatch):
    still, one = scene(0), scene(1) // 2
    pan = np.full((48, 64, 2), (1, 0), np.float32)
    monkeypatch.setattr(steady, "optical_flow", lambda a, b: pan)
    assert math.isnan(flicker([still] * 2, [one, one + 7])["static_change"])
    monkeypatch.setattr(steady, "optical_flow", lambda a, b: pan / 8)
    assert flicker([still] * 2, [one, one + 7])["static_change"] == pytest.approx(7)


def test_the_blend_does_not_smear_what_appears():
    before, after = scene(0), scene(0).copy()
    after[16:32, 16:40] = scene(9)[16:32, 16:40]
    red, blue = np.full((2, 48, 64, 3), (200, 0, 0), np.uint8)
    blue[:] = (0, 0, 200)
    (_, _), (_, made) = smooth(iter([(Piece(stack([before])), stack([red])), (Piece(stack([after])), stack([blue]))]))
    assert made[0, 0, 0, 0] == 180 and made[0, 0, 20:28, 22:34].float().mean() < 60


def test_measuring_compares_the_first_frames_with_the_free_network():
    frames = [scene(0)] * 6
    changing = [Piece(stack([frame])) for frame in frames]
    pairs = ((piece, piece.pictures // 2 + 5 * (n % 2)) for n, piece in enumerate(changing))
    meters = {}
    passed = list(measured(pairs, lambda piece: piece.pictures, meters, 4))
    assert len(passed) == 6
    found = {name: meter.result()["static_change"] for name, meter in meters.items()}
    assert found["source"] == found["off"] == 0 and found["result"] == pytest.approx(5)


def test_what_is_measured_does_not_depend_on_the_batch():
    frames, found = [scene(number) for number in range(6)], []
    for batch in (1, 4, 6):
        pieces, meters = [Piece(stack(frames[at : at + batch])) for at in range(0, 6, batch)], {}
        list(measured(((piece, piece.pictures // 2) for piece in pieces), lambda piece: piece.pictures, meters, 3))
        found.append({name: meter.result()["warp_error"] for name, meter in meters.items()})
    assert found[0] == found[1] == found[2]


def test_the_sample_video_flickers_less(shared):
    """Big Buck Bunny and a trained network: the blend takes off half of what does not move with its source."""
    trained = transformer.read(shared / "weights/style/v2_wave_lengstrom_layout.safetensors")
    capture = cv2.VideoCapture(str(shared / "data/style/video_big_buck_bunny_360p24_10s.mp4"))
    frames = [cv2.resize(capture.read()[1][..., ::-1], (96, 54), interpolation=cv2.INTER_AREA) for _ in range(6)]
    found = {}
    for name in ("off", "flow"):
        made = torch.cat(list(stylise_stream(Stylist(trained), name)(split(frames, 3))))
        found[name] = flicker(frames, list(made.permute(0, 2, 3, 1).numpy()))
    assert found["flow"]["warp_error"] < 0.5 * found["off"]["warp_error"]
    assert found["flow"]["static_change"] < 0.67 * found["off"]["static_change"]


@pytest.mark.parametrize("reference", [True, False])
def test_frames_that_do_not_fit_into_memory_are_one_line(network, monkeypatch, reference):
    def short(*given, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9000000000 bytes")

    monkeypatch.setattr(TransformerNetwork, "statistics", short)
    monkeypatch.setattr(tiling, "stylise", short)
    pictures = stack([scene(seed) for seed in range(3)])
    with pytest.raises(UserError, match="3 frames do not fit into memory; use --batch 1"):
        Stylist(network)(Piece(pictures, 1, pictures if reference else None))
