"""Crops and flips, normalisations, and what is refused."""

import json

import jax
import numpy as np
import pytest

from identity_matters import normalizations, preprocessing
from identity_matters.preprocessing import Preprocessing

SHAPE = (4, 5, 2)


def _images(examples, shape=SHAPE):
    return np.random.default_rng(0).integers(0, 256, (examples, *shape), np.uint8)


def _inputs(name, images, pad=0, flip=False):
    """The input functions of the normalisation `name`."""
    fitted = Preprocessing.fit(name, images, pad_pixels_per_side=pad, flip=flip)
    return fitted.train_input, fitted.eval_input


def _crops(image, pad, flip):
    """Every crop of `image` [h, w, c] padded with zeros.

    By (row, column, flipped).
    """
    height, width, _ = image.shape
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    crops = {
        (row, column, False): padded[row : row + height, column : column + width]
        for row in range(2 * pad + 1)
        for column in range(2 * pad + 1)
    }
    if flip:
        crops |= {(r, c, True): crop[:, ::-1] for (r, c, _), crop in crops.items()}
    return crops


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("pad", [0, 2, 5])
def test_crops_by_products_are_those_by_slices_to_the_last_bit(pad, flip):
    keys = jax.random.split(jax.random.key(3), 9)
    x = np.random.default_rng(0).standard_normal((9, *SHAPE), np.float32)
    slices = preprocessing._crop_and_flip_by_slices(x, keys, pad=pad, flip=flip)
    products = preprocessing._crop_and_flip_by_products(
        x, keys, pad=pad, flip=flip, precision=jax.lax.Precision.HIGHEST
    )
    np.testing.assert_array_equal(products, slices)


def test_a_tpu_gets_the_products_and_only_pixels_go_without_full_precision():
    """A TPU would run the slices of a batch as a loop over its images."""
    keys = jax.random.split(jax.random.key(0), 3)

    def compiled_for(platform, name):
        images = _images(3)
        train_input, _ = _inputs(name, images, pad=1, flip=True)
        traced = jax.jit(train_input).trace(images, keys)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    for_tpu = compiled_for("tpu", "per_image")
    assert for_tpu.count("dot_general") == 2 and "dynamic_slice" not in for_tpu
    # 0 to 255 are exact in bfloat16; normalised values are not.
    assert "HIGHEST" not in for_tpu
    assert compiled_for("tpu", "mean_std").count("HIGHEST") == 4
    for platform in ("cpu", "cuda"):
        assert "dot_general" not in compiled_for(platform, "per_image")
    # Whitening is a product with numbers that are not exact on any accelerator.
    assert compiled_for("cuda", "gcn_zca").count("HIGHEST") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("pad", "flip"), [(0, True), (2, True)])
def test_all_crops_and_flips_happen_equally_often_and_nothing_else(key, pad, flip):
    # All values differ, so no two crops or flips are equal.
    image = np.arange(1, 41, dtype=np.float32).reshape(SHAPE)
    crops = _crops(image, pad, flip)
    draws = 100 * len(crops)
    train_input, _ = _inputs("none", image[None], pad, flip)
    images = np.broadcast_to(image, (draws, *SHAPE))
    inputs = np.asarray(jax.jit(train_input)(images, jax.random.split(key, draws)))
    counts = {
        place: int(np.sum((inputs == crop).all((1, 2, 3))))
        for place, crop in crops.items()
    }
    assert sum(counts.values()) == draws
    # Each count is Binomial(draws, 1/len(crops)): 50 is at least five standard
    # deviations.
    assert all(abs(count - 100) <= 50 for count in counts.values())


def test_crops_and_flips_do_not_depend_on_whether_jax_computes_in_64_bits():
    images = _images(20)
    train_input, _ = _inputs("none", images, pad=1, flip=True)
    inputs = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            keys = jax.random.split(jax.random.key(0), len(images))
            inputs.append(np.asarray(train_input(images, keys)))
    np.testing.assert_array_equal(*inputs)


def _standardized(image):
    x = image.astype(np.float64)
    return (x - x.mean()) / max(x.std(), 1 / np.sqrt(x.size))


def test_per_image_standardization_is_that_of_tensorflow():
    images = _images(3)
    images[1] = 77
    images[2] = 0
    images[2, 0, 0, 0] = 1
    # The last has the standard deviation sqrt(39)/40, just below 1/sqrt(40).
    assert images[2].std() < 40**-0.5
    _, eval_input = _inputs("per_image", images)
    expected = np.stack([_standardized(image) for image in images])
    np.testing.assert_allclose(eval_input(images), expected, rtol=1e-5, atol=1e-6)
    assert not np.any(eval_input(images[1:2]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["per_image", "mean_std", "gcn_zca"])
def test_per_image_standardization_counts_padding_and_the_others_pad_what_is_normalised(
    key, name
):
    images = np.maximum(_images(12), 1)
    train_input, eval_input = _inputs(name, images, pad=1, flip=False)
    copies = np.broadcast_to(images[0], (64, *SHAPE))
    inputs = np.asarray(jax.jit(train_input)(copies, jax.random.split(key, 64)))
    if name == "per_image":
        crops = [_standardized(crop) for crop in _crops(images[0], 1, False).values()]
    else:
        crops = list(_crops(np.asarray(eval_input(images[:1]))[0], 1, False).values())
    distances = np.abs(inputs[:, None] - np.stack(crops)[None]).max((2, 3, 4))
    assert distances.min(1).max() < 1e-5
    assert set(distances.argmin(1)) == set(range(9))


def test_mean_std_of_each_channel():
    images = _images(10)
    _, eval_input = _inputs("mean_std", images)
    y = np.asarray(eval_input(images), np.float64)
    np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(y.std((0, 1, 2)), 1, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_constants_of_mean_std_do_not_lose_digits_in_many_pixels(dtype):
    """10,000 numbers of each channel; the variances of floats are summed in parts."""
    images = _images(100, (10, 10, 2)).astype(dtype)
    if dtype == np.float32:
        images = 1000 + images / 255
    constants = Preprocessing.fit("mean_std", images).constants
    exact = images.astype(np.float64)
    for name, expected in (
        ("shift", exact.mean((0, 1, 2))),
        ("divisor", exact.std((0, 1, 2))),
    ):
        np.testing.assert_allclose(constants[name][0, 0, 0], expected, rtol=2e-7)


@pytest.mark.slow
def test_zca_whitens_the_training_images(monkeypatch):
    monkeypatch.setattr(
        normalizations, "_CHUNK_ROWS", 64
    )  # 300 images: full chunks and a partial one
    images = _images(300, (2, 2, 3))
    images[7] = 9  # without any contrast
    fitted = Preprocessing.fit("gcn_zca", images)
    whitening = fitted.constants["whitening"]
    np.testing.assert_array_equal(whitening, whitening.T)
    y = np.asarray(fitted.eval_input(images), np.float64).reshape(300, -1)
    # C (C + 0.1 I)^{-1} is the identity up to 0.1 in variances of about 3025/12, except
    # in the constant direction, which contrast normalisation removes.
    x = images.reshape(300, -1).astype(np.float64)
    x -= x.mean(1, keepdims=True)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    covariance = np.cov(
        55 * x / np.where(norms == 0, 1, norms), rowvar=False, bias=True
    )
    expected = covariance @ np.linalg.inv(covariance + 0.1 * np.eye(12))
    np.testing.assert_allclose(np.cov(y, rowvar=False, bias=True), expected, atol=1e-5)
    np.testing.assert_allclose(expected, np.eye(12) - 1 / 12, atol=1e-3)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-4)
    # Of contrast, little counts as much as plenty.
    pattern = images[8] % 2
    faint, bold = fitted.eval_input(np.stack([9 + pattern, 200 * pattern]))
    np.testing.assert_allclose(faint, bold, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda images: _inputs("zca", images),
            "normalization must be one of .* 'zca'",
        ),
        (
            lambda images: _inputs("none", images, pad=-1),
            "pad_pixels_per_side must be at",
        ),
        (lambda images: _inputs("mean_std", 0 * images), "every channel .* must vary"),
        (
            lambda images: _inputs("per_image", images)[1](images[0]),
            r"images must be uint8\[n, 4, 5, 2\], got uint8\[4, 5, 2\]",
        ),
        # In float32 their squares or differences are infinite, or their standard
        # deviation is 0.
        *(
            (
                lambda images, name=name: _inputs(name, np.float32(1e30) * images),
                rf"at most 1e\+15 in size for {name}, got 2.48e\+32: scale them",
            )
            for name in ("per_image", "gcn_zca")
        ),
        (
            lambda images: _inputs("mean_std", np.float32(1e36) * images),
            r"at most 1e\+37 in size for mean_std, got 2.48e\+38: scale them",
        ),
        (
            lambda images: _inputs("mean_std", np.float32(1e-40) * images),
            "every channel .* must vary",
        ),
    ],
)
def test_unusable_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(_images(2))


@pytest.mark.parametrize("name", ["per_image", "mean_std", "gcn_zca"])
def test_the_largest_images_have_the_inputs_of_scaled_ones(name):
    images = _images(8) / np.float32(255) - np.float32(0.5)
    images /= np.abs(images).max()
    # Just below, so that rounding leaves none above.
    largest = images * np.float32(normalizations.NORMALIZATIONS[name].largest * 0.999)
    _, eval_input = _inputs(name, images)
    _, eval_largest = _inputs(name, largest)
    np.testing.assert_allclose(
        jax.jit(eval_largest)(largest), eval_input(images), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("normalization", ["none", "per_image", "mean_std", "gcn_zca"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_no_constants_come_from_images_that_are_not_finite(normalization, number):
    images = _images(8, (2, 2, 3)).astype(np.float32)
    images[3, 1, 0, 2] = number
    with pytest.raises(ValueError, match="images must be finite, got NaN or infinity"):
        Preprocessing.fit(normalization, images)


def test_a_description_is_json_also_with_a_padding_of_numpy():
    fitted = Preprocessing.fit("none", _images(2), pad_pixels_per_side=np.int64(2))
    assert json.loads(json.dumps(fitted.description()))["pad_pixels_per_side"] == 2


def test_an_augmentation_that_does_not_fit_is_refused_before_constants_are_computed(
    monkeypatch,
):
    monkeypatch.setattr(np.linalg, "eigh", None)
    with pytest.raises(ValueError, match=r"for images \[n, h, w, c\], got \[n, 40\]"):
        _inputs("gcn_zca", _images(4).reshape(4, -1), flip=True)


@pytest.mark.parametrize("name", ["none", "per_image", "mean_std", "gcn_zca"])
def test_a_uniform_image_has_finite_gradients_and_no_images_have_no_inputs(name):
    images = _images(8).astype(np.float32)
    images[0] = 0
    images[1] = 7
    _, eval_input = _inputs(name, images)
    gradient = jax.grad(lambda images: (eval_input(images) ** 3).sum())(images)
    assert np.isfinite(gradient).all()
    assert eval_input(images[:0]).shape == (0, *SHAPE)


def test_a_list_of_images_is_told_its_dtype():
    with pytest.raises(ValueError, match=r"uint8 or float32\[n, ...\], got int64\["):
        Preprocessing.fit("none", _images(2).tolist())


def test_each_image_has_its_own_key():
    images = _images(3)
    train_input, eval_input = _inputs("per_image", images, pad=1)
    for keys in (jax.random.key(0), jax.random.split(jax.random.key(0), 2)):
        with pytest.raises(ValueError, match="keys must be one for each of 3 images"):
            train_input(images, keys)
    with pytest.raises(ValueError, match="images must be a plain array of numbers"):
        eval_input(np.ma.array(images))
