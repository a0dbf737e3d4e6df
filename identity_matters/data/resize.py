"""A pre-resized copy of ImageNet, for hosts that decode too slowly to feed their accelerators.

Shard by shard, with the same examples in the same order and the same file names, so that the same
builder of tensorflow_datasets reads it and a stream has the same examples at the same steps. Images
are resized once to a given shorter side and stored as JPEG; those that are smaller already keep
their bytes. A random crop of the copy therefore is a little coarser than one of the original.

Shards are written to a temporary name and moved, the description of the data set comes last: a
copy that was interrupted goes on where it stopped, and is not taken for a finished one.
"""

import concurrent.futures
import multiprocessing
import os
import pathlib
import shutil
from collections.abc import Callable

from identity_matters import json_files
from identity_matters.data import imagenet, jpeg

SHORTER_SIDE_PIXELS = 256
JPEG_QUALITY = 95
_INFO = "dataset_info.json"
_SETTINGS = "resized.json"


def resize(
    source_dir: str | os.PathLike[str],
    target_dir: str | os.PathLike[str],
    *,
    shorter_side_pixels: int = SHORTER_SIDE_PIXELS,
    jpeg_quality: int = JPEG_QUALITY,
    processes: int,
    progress: Callable[[int, int], None] = lambda done, shards: None,
) -> pathlib.Path:
    """Writes a resized copy of the `imagenet2012` in `source_dir` below `target_dir`.

    Args:
      source_dir, target_dir: as `data_dir` of `imagenet.EncodedImages`.
      processes: how many work at once, at least 1.
      progress: called with the numbers of finished and of all shards.
    Returns:
      the directory of the copy.
    Raises:
      ValueError: nothing prepared in `source_dir`, `target_dir` is the same place or holds a copy
        with other settings, or an image is truncated or damaged: which.
    """
    if processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    if shorter_side_pixels < 1 or not 1 <= jpeg_quality <= 100:
        raise ValueError(
            "shorter_side_pixels must be at least 1 and jpeg_quality from 1 to 100, got"
            f" {shorter_side_pixels} and {jpeg_quality}"
        )
    source = _prepared_directory(source_dir)
    target = pathlib.Path(target_dir).expanduser() / source.parent.name / source.name
    if target.resolve() == source.resolve():
        raise ValueError(f"source_dir and target_dir must differ, got {source_dir} for both")
    info = json_files.read_json(source / _INFO)
    settings = {"shorter_side_pixels": shorter_side_pixels, "jpeg_quality": jpeg_quality}
    _claim(target, settings | {"splits": [_size(split) for split in info["splits"]]})
    shards = sorted(source.glob(f"*.{imagenet.FILE_FORMAT}-*"))
    arguments: list = [(shard, target / shard.name, *settings.values()) for shard in shards]
    missing = [entry for entry in arguments if not entry[1].exists()]
    progress(len(shards) - len(missing), len(shards))
    for done, _ in enumerate(_map(resize_shard, missing, processes), 1):
        progress(len(shards) - len(missing) + done, len(shards))
    for split in info["splits"]:
        files = target.glob(f"*-{split['name']}.{imagenet.FILE_FORMAT}-*")
        split["numBytes"] = str(sum(file.stat().st_size for file in files))
    for path in source.iterdir():
        if path.is_file() and path not in shards and path.name != _INFO:
            shutil.copy(path, target / path.name)
    json_files.write_json(target / _INFO, info)
    return target


def _prepared_directory(data_dir) -> pathlib.Path:
    """Where the files of the prepared data set lie; ValueError where it is not prepared."""
    data_dir = pathlib.Path(data_dir).expanduser()
    if not data_dir.is_dir() or not (builder := imagenet.builder(data_dir)).is_prepared():
        raise ValueError(
            f"{imagenet.NAME} is not prepared in {data_dir};"
            f" see: make data DATASETS={imagenet.NAME}"
        )
    return pathlib.Path(builder.data_dir)


def _size(split: dict) -> dict:
    return {"name": split["name"], "shard_lengths": split["shardLengths"]}


def _claim(target: pathlib.Path, settings: dict) -> None:
    """Makes `target`, or raises ValueError where it was made with other settings."""
    path = target / _SETTINGS
    if path.exists():
        found = json_files.read_json(path)
        if found != settings:
            raise ValueError(f"{target} is a copy with other settings: {found}, not {settings}")
    elif target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} holds something else already; name another target_dir")
    else:
        target.mkdir(parents=True, exist_ok=True)
        json_files.write_json(path, settings)


def _map(function: Callable, arguments: list, processes: int):
    """Results as they come, from processes of their own unless there is only one."""
    if processes == 1:
        for entry in arguments:
            yield function(*entry)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(function, *entry) for entry in arguments]
        try:
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def resize_shard(
    source: pathlib.Path, target: pathlib.Path, shorter_side_pixels: int, jpeg_quality: int
) -> None:
    """Copies one array_record file of `imagenet2012` with its images resized."""
    from array_record.python import array_record_data_source
    from tensorflow_datasets.core.file_adapters import ArrayRecordFileAdapter
    from tensorflow_datasets.proto import tf_example_pb2

    records = array_record_data_source.ArrayRecordDataSource([str(source)])

    def resized():
        for index in range(len(records)):
            example = tf_example_pb2.Example.FromString(records[index])
            feature = example.features.feature
            image = feature["image"].bytes_list
            name = feature["file_name"].bytes_list.value[0].decode()
            image.value[0] = resize_image(image.value[0], name, shorter_side_pixels, jpeg_quality)
            yield index, example.SerializeToString()

    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        ArrayRecordFileAdapter.write_examples(temporary, resized())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def resize_image(encoded: bytes, name: str, shorter_side_pixels: int, jpeg_quality: int) -> bytes:
    """A JPEG with the given shorter side; `encoded` itself if it is no larger.

    Raises:
      ValueError: `name` is truncated, damaged, or no image.
    """
    image = jpeg.decode(encoded, name)
    if min(image.shape[:2]) <= shorter_side_pixels:
        return encoded
    return jpeg.encode(jpeg.resize_shorter_side(image, shorter_side_pixels), jpeg_quality)
