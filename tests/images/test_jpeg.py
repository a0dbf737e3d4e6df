"""Decoding, random crops and centre crops, against Pillow and formulas by hand."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from identity_matters.images import decoding, views
from identity_matters.images.imagenet import CHANNEL_CONSTANTS
from identity_matters.preprocessing import Preprocessing

pytest.importorskip("cv2", reason="OpenCV is not installed (extra imagenet)")


def smooth_image(height: int, width: int) -> np.ndarray:
    """Ramps: down in red, across in green, constant in blue."""
    red, green = np.meshgrid(
        np.linspace(0, 255, height), np.linspace(0, 255, width), indexing="ij"
    )
    return np.stack([red, green, np.full_like(red, 80)], axis=-1).astype(np.uint8)


def encoded(image: Image.Image, fmt: str = "JPEG", **options) -> bytes:
    """The bytes of a file as Pillow writes it."""
    file = io.BytesIO()
    image.save(file, fmt, **options)
    return file.getvalue()


RGB = Image.fromarray(smooth_image(60, 80))
FILES = {
    "rgb": encoded(RGB, quality=95),
    "progressive": encoded(RGB, progressive=True),
    "grey": encoded(RGB.convert("L")),
    "cmyk": encoded(RGB.convert("CMYK"), quality=95),
    "png": encoded(RGB, "PNG"),
    "png_with_alpha": encoded(RGB.convert("RGBA"), "PNG"),
    "png_grey": encoded(RGB.convert("L"), "PNG"),
    "png_palette": encoded(RGB.convert("P"), "PNG"),
}


@pytest.mark.parametrize("name", FILES)
def test_decoding_agrees_with_pillow(name):
    expected = np.asarray(Image.open(io.BytesIO(FILES[name])).convert("RGB"), np.int64)
    decoded = decoding.decode(FILES[name], name)
    assert decoded.dtype == np.uint8 and decoded.shape == (60, 80, 3)
    # CMYK conversions round differently; everything else is libjpeg and libpng on both
    # sides.
    assert np.abs(decoded - expected).max() <= (1 if name == "cmyk" else 0)


def test_a_channel_gets_the_mean_and_the_deviation_of_its_colour():
    """Those of torchvision's models, for pixels from 0 to 1, in the order RGB."""
    red = encoded(Image.new("RGB", (2, 2), (255, 0, 0)), "PNG")
    images = decoding.decode(red, "red")[None]
    preprocessing = Preprocessing("mean_std", CHANNEL_CONSTANTS, images.shape[1:])
    x = preprocessing.eval_input(images)
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    np.testing.assert_allclose(x[0, 0, 0], expected, rtol=1e-6)


def test_an_orientation_is_ignored_and_bytes_after_the_end_do_no_harm():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    expected = decoding.decode(FILES["rgb"], "rgb")
    for data in (encoded(RGB, quality=95, exif=exif), FILES["rgb"] + b"appended"):
        np.testing.assert_array_equal(decoding.decode(data, "x"), expected)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_truncated_file_is_refused_by_name(name, share):
    data = FILES[name][: int(len(FILES[name]) * share)]
    with pytest.raises(
        ValueError, match=rf"^val_7\.JPEG is truncated: {len(data)} bytes"
    ):
        decoding.decode(data, "val_7.JPEG")
    # An interrupted download may look like this.
    with pytest.raises(ValueError, match=r"^val_7\.JPEG is truncated"):
        decoding.decode(data + bytes(1000), "val_7.JPEG")


def test_a_thumbnail_does_not_hide_that_the_image_is_truncated():
    thumbnail = FILES["rgb"]
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    data = FILES["rgb"][:2] + segment + FILES["rgb"][2:]
    assert decoding.decode(data, "whole").shape == (60, 80, 3)
    with pytest.raises(ValueError, match="truncated"):
        decoding.decode(data[:-40], "cut")


@pytest.mark.parametrize("data", [b"", b"GIF89a" + bytes(50), b"\xff\xd8"])
def test_anything_but_an_image_is_refused_by_name(data):
    with pytest.raises(ValueError, match=r"^x\.JPEG is neither a JPEG nor a PNG"):
        decoding.decode(data, "x.JPEG")


def test_damage_inside_is_refused_by_name():
    header = bytearray(FILES["rgb"])
    # Clears the markers of the first segments, after the three bytes that identify a
    # JPEG.
    header[3:200] = bytes(197)
    with pytest.raises(ValueError, match=r"^x\.JPEG (cannot be decoded|is truncated)"):
        decoding.decode(bytes(header), "x.JPEG")


def test_random_crops_have_the_areas_and_aspects_that_are_asked_for():
    # In a square nearly all crops of areas up to 3/4 fit at once, so rejection does not
    # bias these.
    side = 2000
    drawn = [
        views.draw_view(side, side, seed=3, epoch=1, example=i) for i in range(4000)
    ]
    crops = np.array([crop for crop, _ in drawn])
    top, left, height, width = crops.T
    assert np.all(
        (top >= 0) & (left >= 0) & (top + height <= side) & (left + width <= side)
    )
    share = height * width / side**2
    aspect = width / height
    assert 0.0795 < share.min() < 0.09 and share.max() <= 1
    assert 0.748 < aspect.min() < 0.76 and 1.32 < aspect.max() < 1.336
    # The mean of the uniform distribution is within four standard errors.
    below = share[share < 0.7]
    assert abs(below.mean() - (0.08 + 0.7) / 2) < 4 * below.std() / math.sqrt(
        len(below)
    )
    log_aspect = np.log(aspect[share < 0.7])
    assert abs(log_aspect.mean()) < 4 * log_aspect.std() / math.sqrt(len(log_aspect))
    place = top[share < 0.5] / (side - height[share < 0.5])
    assert abs(place.mean() - 0.5) < 4 * place.std() / math.sqrt(len(place))
    mirrored = np.mean([mirror for _, mirror in drawn])
    assert abs(mirrored - 0.5) < 4 * 0.5 / math.sqrt(len(drawn))


def test_an_image_too_narrow_for_any_crop_gives_its_centre():
    crop, _ = views.draw_view(1000, 10, seed=0, epoch=0, example=0)
    # Height 10 / (3/4) = 13 pixels, centred.
    assert crop == views.Crop(top=493, left=0, height=13, width=10)
    crop, _ = views.draw_view(10, 1000, seed=0, epoch=0, example=0)
    assert crop == views.Crop(top=0, left=493, height=10, width=13)
    assert views.draw_view(1, 1, seed=0, epoch=0, example=0)[0] == views.Crop(
        0, 0, 1, 1
    )


def test_a_view_depends_on_seed_epoch_and_example_alone():
    def view(seed, epoch, example):
        return views.draw_view(400, 500, seed=seed, epoch=epoch, example=example)

    assert view(1, 2, 3) == view(1, 2, 3)
    others = [
        view(*key) for key in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (2, 1, 3)]
    ]
    assert len(set(others)) == 5
    # Pinned: a resumed run on another version of NumPy must see the same crops.
    assert view(1, 2, 3) == (views.Crop(top=9, left=34, height=378, width=420), True)


def test_a_training_view_is_the_resized_crop_mirrored():
    image = smooth_image(400, 600)
    crop = views.Crop(top=100, left=300, height=200, width=100)
    plain, mirrored = np.empty((2, 50, 50, 3), np.uint8)
    views.train_view(image, views.View(crop, is_mirrored=False), plain)
    views.train_view(image, views.View(crop, is_mirrored=True), mirrored)
    np.testing.assert_array_equal(mirrored, plain[:, ::-1])
    # Ramps stay ramps: pixel i of the output shows the middle of its share of the crop.
    rows = 100 + (np.arange(50) + 0.5) * 200 / 50 - 0.5
    columns = 300 + (np.arange(50) + 0.5) * 100 / 50 - 0.5
    # Two roundings to integers.
    assert np.abs(plain[..., 0] - (255 * rows / 399)[:, None]).max() <= 1.5
    assert np.abs(plain[..., 1] - (255 * columns / 599)[None, :]).max() <= 1.5


def test_shrinking_much_does_not_alias():
    image = np.zeros((512, 512, 3), np.uint8)
    image[::4] = 255  # every fourth row
    out = np.empty((64, 64, 3), np.uint8)
    whole = views.Crop(top=0, left=0, height=512, width=512)
    views.train_view(image, views.View(whole, is_mirrored=False), out)
    assert set(np.unique(out)) <= {63, 64}


@pytest.mark.parametrize(
    ("height", "width"), [(512, 768), (300, 200), (256, 256), (100, 333)]
)
def test_evaluation_takes_the_centre_of_the_resized_image(height, width):
    image = smooth_image(height, width)
    out = np.empty((224, 224, 3), np.uint8)
    views.eval_view(image, 256, out)
    # The same with Pillow; for smooth images its other resizing method hardly differs.
    scale = 256 / min(height, width)
    size = round(width * scale), round(height * scale)
    resized = Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)
    top = (resized.height - 224) // 2
    left = (resized.width - 224) // 2
    expected = np.asarray(resized, np.int64)[top : top + 224, left : left + 224]
    assert np.abs(out - expected).max() <= 2


@pytest.mark.parametrize("name", ["rgb", "progressive", "grey", "cmyk"])
def test_whatever_follows_a_whole_image_does_no_harm(name):
    """A video or a second image, cut or whole.

    Bytes that look like markers are not searched.
    """
    rng = np.random.default_rng(0)
    expected = decoding.decode(FILES[name], name)
    trailers = [b"\xff\xda", FILES["rgb"][:700], b"\xff\xd8\xff" + b"\xff\xda" * 9]
    trailers += [rng.bytes(20_000) + b"\xff\xda" for _ in range(50)]
    for trailer in trailers:
        np.testing.assert_array_equal(
            decoding.decode(FILES[name] + trailer, name), expected
        )


@pytest.mark.parametrize("name", ["rgb", "progressive", "grey", "cmyk"])
def test_a_second_image_does_not_hide_that_the_first_was_cut(name):
    whole = FILES[name]
    for end in range(whole.index(b"\xff\xda") + 20, len(whole) - 2, 7):
        # The decoder notices if the cut is within a header.
        with pytest.raises(decoding.DataError, match=r"is truncated|cannot be decoded"):
            decoding.decode(whole[:end] + whole, name)
