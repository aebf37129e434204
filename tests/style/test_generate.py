import io
from itertools import islice, pairwise

import av
import numpy as np
import pytest

from retable.tasks.style.files import generate


def test_a_picture_follows_from_seed_split_and_number_alone():
    first = [generate.landscape(0, 0, number) for number in range(6)]
    assert all(picture.dtype == np.uint8 and picture.shape[:2] in generate.SHAPES for picture in first)
    again = [generate.landscape(0, 0, number) for number in reversed(range(6))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    test = [generate.landscape(0, 1, number) for number in range(6)]
    other = [generate.landscape(1, 0, number) for number in range(6)]
    assert len({picture.tobytes() for picture in [*first, *test, *other]}) == 18


def test_pictures_are_varied_and_fill_the_range():
    pictures = [generate.landscape(3, 0, number) for number in range(16)]
    means = np.array([picture.mean(axis=(0, 1)) for picture in pictures])
    assert means.std(axis=0).min() > 15  # light and colours differ
    assert np.mean([picture.std() for picture in pictures]) > 35  # as those of photographs: about 60
    assert min(np.ptp(picture) for picture in pictures) > 90
    assert len({picture.shape for picture in pictures}) == 3


def test_fractal_noise_is_centred_and_rough_at_every_scale():
    noise = generate.fractal(np.random.default_rng(0), 256, 256, (4, 4), 6)
    assert noise.shape == (256, 256) and 0 <= noise.min() < 0.2 and 0.8 < noise.max() <= 1
    assert abs(noise.mean() - 0.5) < 0.1
    steps = [np.abs(noise[:, lag:] - noise[:, :-lag]).mean() for lag in (1, 4, 16)]
    assert 0 < steps[0] < steps[1] < steps[2]
    smooth = generate.fractal(np.random.default_rng(0), 256, 256, (4, 4), 1)
    assert np.abs(np.diff(smooth, axis=1)).mean() < steps[0]
    assert generate.fractal(np.random.default_rng(0), 1, 200, (1, 3), 6).shape == (1, 200)


def test_water_mirrors_what_stands_above_it():
    rng, light = np.random.default_rng(0), generate.LIGHTS[0]
    canvas = np.full((100, 80, 3), 0.2, np.float32)
    canvas[:50, 40:] = 0.9  # a bright half
    generate.water(rng, light, canvas, 50, 20)
    assert canvas[52:58, 60:].mean() > canvas[52:58, :20].mean() + 0.3
    assert np.allclose(canvas[:50, 40:], 0.9)


@pytest.fixture(scope="module")
def frames():
    return list(generate.frames(0))


def test_the_clip_stands_still_but_for_what_moves_and_pans_at_the_end(frames):
    assert len(frames) == 72 and all(frame.shape == (180, 320, 3) for frame in frames)
    still = (np.ptp(np.stack(frames[: generate.PAN[0]]), axis=0) == 0).all(axis=-1)
    assert 0.5 < still.mean() < 0.98  # most pixels never change, but some do
    shift = (72 - generate.PAN[0]) * generate.PAN[1]
    unmoved = (frames[-1][:, : 320 - shift] == frames[0][:, shift:]).all(axis=-1)
    assert unmoved.mean() > 0.9
    assert (frames[-1] == frames[0]).all(axis=-1).mean() < 0.5
    steps = [np.abs(np.float32(a) - b).mean() for a, b in pairwise(frames)]
    assert min(steps) > 0 and max(steps[: generate.PAN[0] - 2]) < min(steps[generate.PAN[0] :])


def test_frames_follow_from_the_seed(frames):
    assert all(np.array_equal(a, b) for a, b in zip(frames, islice(generate.frames(0), 3), strict=False))
    assert not np.array_equal(frames[0], next(generate.frames(1)))


def test_the_clip_is_a_video_with_sound(frames):
    data = generate.clip(0)
    with av.open(io.BytesIO(data)) as container:
        video, sound = container.streams.video[0], container.streams.audio[0]
        assert (video.codec_context.name, sound.codec_context.name) == ("h264", "aac")
        assert video.average_rate == 24 and video.duration * video.time_base == 3
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(decoded) == 72
    for number in (0, 40, 71):
        assert np.abs(np.float32(decoded[number]) - frames[number]).mean() < 4
    with av.open(io.BytesIO(data)) as container:
        tone = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert abs(len(tone) / 44100 - 3) < 0.05
    spectrum = np.abs(np.fft.rfft(tone))
    assert abs(np.fft.rfftfreq(len(tone), 1 / 44100)[spectrum.argmax()] - 220) < 1
