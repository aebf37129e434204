import numpy as np
import pytest
from PIL import Image

from retable.tasks.style.files import assets


def test_the_shipped_pictures_are_small_and_their_licences_are_given():
    licences = (assets.FOLDER / "LICENSES.md").read_text()
    shipped = assets.paintings() | assets.photographs() | assets.large()
    assert set(assets.paintings()) == {"great_wave", "starry_night", "the_scream", "metzinger"}
    assert set(assets.photographs()) == {"astronaut", "coffee", "mountain"}
    assert {path.name for path in shipped.values()} == {path.name for path in assets.FOLDER.glob("*.jpg")}
    for name, path in shipped.items():
        assert path.stem == name and f"| {path.name} |" in licences
        assert path.stat().st_size <= (850_000 if name == assets.LARGE else 150_000)
        with Image.open(path) as picture:
            picture.load()
            assert picture.mode == "RGB"
            assert picture.size == (3082, 2048) if name == assets.LARGE else 400 <= max(picture.size) <= 1024
    assert "(c) copyright Blender Foundation \\| www.sintel.org" in licences


def averaging(length, new):
    """Share of each old pixel in each new one, float64 (new, length)."""
    edges = np.arange(new + 1) * length / new
    low, high = np.maximum(edges[:-1, None], np.arange(length)), np.minimum(edges[1:, None], np.arange(1, length + 1))
    return np.maximum(high - low, 0) * new / length


@pytest.mark.parametrize(("place", "name"), [(0, "great_wave"), (3, "astronaut"), (5, "mountain")])
def test_calibration_images_are_area_averages_of_the_middle(place, name):
    found = assets.calibration()
    assert found.shape == (6, 3, 192, 192) and found.is_contiguous()
    pixels = np.asarray(Image.open((assets.paintings() | assets.photographs())[name]), np.float64)
    height, width = (round(side * 192 / min(pixels.shape[:2])) for side in pixels.shape[:2])
    resized = np.einsum(
        "hi,wj,ijc->hwc", averaging(pixels.shape[0], height), averaging(pixels.shape[1], width), pixels, optimize=True
    )
    top, left = (height - 192) // 2, (width - 192) // 2
    expected = resized[top : top + 192, left : left + 192].transpose(2, 0, 1) / 255
    assert np.abs(found[place].numpy() - expected).max() < 0.6 / 255
