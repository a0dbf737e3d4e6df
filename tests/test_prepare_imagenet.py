"""tensorflow_datasets' own imagenet2012 builder on miniature archives, through `prepare_data`.

It takes the environment that `make data` makes; PREPARE_PYTHON=.../bin/python names another.
IMAGENET_SAMPLE=DIRECTORY packs the *.JPEG files there instead of generated ones.
"""

import io
import os
import pathlib
import subprocess
import tarfile

import numpy as np
import pytest
from PIL import Image

from identity_matters.images import datasets, imagenet, jpeg, miniature
from tests import forked

for _module in ("tensorflow_datasets", "array_record", "grain", "cv2"):
    pytest.importorskip(_module, reason=f"{_module} is not installed (extra imagenet)")

ROOT = pathlib.Path(__file__).resolve().parent.parent
PREPARE = pathlib.Path(os.environ.get("PREPARE_PYTHON", ROOT / ".venv-prepare" / "bin" / "python"))
# The first validation images' labels, as the builder has them; these are image 1, 2, 3.
VALIDATION_LABELS = ("n01751748", "n09193705", "n02105855")
CMYK_NAME, PNG_NAME = "n01739381_1309.JPEG", "n02105855_2933.JPEG"


def jpegs(count: int) -> list[bytes]:
    directory = os.environ.get("IMAGENET_SAMPLE")
    if not directory:
        return miniature.generate_jpegs(count, seed=0, scale=0.3)
    return [file.read_bytes() for file in sorted(pathlib.Path(directory).glob("*.JPEG"))[:count]]


def pillow(image: Image.Image, fmt: str) -> bytes:
    file = io.BytesIO()
    image.save(file, fmt)
    return file.getvalue()


def tar(path: pathlib.Path, files: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path.read_bytes()


def prepare_data(data_dir) -> subprocess.CompletedProcess:
    command = [str(PREPARE), "-m", "experiments.images.prepare_data", "--datasets=imagenet2012"]
    return subprocess.run(
        [*command, f"--data_dir={data_dir}"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(
    not PREPARE.exists(), reason=f"{PREPARE} is not there; make data makes it, with TensorFlow"
)
def test_the_builder_packs_archives_that_streams_then_read(tmp_path):
    manual = tmp_path / "data" / "downloads" / "manual"
    manual.mkdir(parents=True)
    images = jpegs(9)
    # Two files that the builder itself turns into RGB JPEGs, told by their names.
    colours = Image.open(io.BytesIO(images[0])).convert("RGB")
    train = {
        "n01739381": {CMYK_NAME: pillow(colours.convert("CMYK"), "JPEG")},
        "n02105855": {PNG_NAME: pillow(colours, "PNG")},
        "n01484850": {f"n01484850_{i}.JPEG": image for i, image in enumerate(images[:6])},
    }
    inner = {f"{wnid}.tar": tar(tmp_path / "inner.tar", files) for wnid, files in train.items()}
    validation = {f"ILSVRC2012_val_{i + 1:08}.JPEG": images[6 + i] for i in range(3)}
    tar(manual / datasets.IMAGENET_ARCHIVES[0], inner)
    missing = prepare_data(tmp_path / "data")
    assert missing.returncode == 2 and "lacks ILSVRC2012_img_val.tar" in missing.stderr
    tar(manual / datasets.IMAGENET_ARCHIVES[1], validation)
    done = prepare_data(tmp_path / "data")
    assert done.returncode == 0, done.stderr

    wnids = imagenet.builder(tmp_path / "data").info.features["label"].names
    encoded = imagenet.EncodedImages(tmp_path / "data", "validation")
    found = {name: (data, wnids[label]) for data, label, name in encoded.read(range(3))}
    assert found == dict(
        zip(validation, zip(images[6:], VALIDATION_LABELS, strict=True), strict=True)
    )
    encoded = imagenet.EncodedImages(tmp_path / "data", "train")
    found = {name: (data, wnids[label]) for data, label, name in encoded.read(range(8))}
    assert {name: wnid for name, (_, wnid) in found.items()} == {
        name: wnid for wnid, files in train.items() for name in files
    }
    for name, data in train["n01484850"].items():
        assert found[name][0] == data
    for name in (CMYK_NAME, PNG_NAME):
        data = found[name][0]
        assert data.startswith(b"\xff\xd8")
        assert Image.open(io.BytesIO(data)).mode == "RGB"
        # JPEG and CMYK lose some colour; this tells right colours from inverted ones.
        error = np.abs(jpeg.decode(data, name).astype(int) - np.asarray(colours)).mean()
        assert error < 12
    # What is there already is left as it is.
    again = prepare_data(tmp_path / "data")
    assert again.returncode == 0 and "5.1.0" in again.stdout


def test_preparing_without_tensorflow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="preparing imagenet2012 needs tensorflow, which is not"):
        datasets.prepare("imagenet2012", tmp_path)


def test_an_unknown_name_lists_all():
    done = forked.run("experiments.images.prepare_data", "--datasets=cifar10 imagenet")
    assert done.returncode == 2
    assert done.stderr.startswith("prepare_data: there is no data set 'imagenet'; there are digits")
    assert "imagenet2012" in done.stderr and len(done.stderr.splitlines()) == 1
