"""The data sets of ResNet-50: folders of ImageNet, CIFAR-10, and random pictures."""

from functools import partial
from pathlib import Path

import numpy as np

from sketchy.experiments import published
from sketchy.experiments.published import File, Form, Known
from sketchy.experiments.workloads.resnet50.pictures import PictureFiles, PictureTable
from sketchy.experiments.workloads.workload import Data

CLASSES = 1000  # of ImageNet
_ENDINGS = (".jpeg", ".jpg", ".png")
TEST = "imagenetv2-matched-frequency-format-val"
_LAYOUT = f"""\
  train/WNID/*.JPEG and val/WNID/*.JPEG, a folder for each class (https://image-net.org, with an account),
  and for the test {TEST}/0 .. 999, beside train or beside its folder
  (https://github.com/modestyachts/ImageNetV2)"""


def open_imagenet(directory: Path, *, side: int) -> Data:
    """ImageNet's folders, for training and validation, and ImageNet v2 for the test."""
    root = next((place for place in (directory / "imagenet", directory) if (place / "train").is_dir()), None)
    if root is None:
        raise ValueError(
            f"imagenet is not in {directory} (--data-dir, else $SKETCHY_DATA). It should have\n{_LAYOUT}"
        )
    names = _folders(root / "train")
    if len(names) > CLASSES:
        raise ValueError(f"{root / 'train'}: {len(names)} folders; there are {CLASSES} classes")
    numbers = {name: i for i, name in enumerate(names)}  # the place among the sorted names
    test = next((place for place in (root / TEST, root.parent / TEST) if place.is_dir()), root / TEST)
    parts = [(root / "train", numbers), (root / "val", numbers), (test, _numbered(test))]
    train, validation, held_out = (PictureFiles(*_listed(*part), side=side) for part in parts)
    return Data(train, validation, held_out, f"{len(names)} classes; ImageNet v2 for the test")


def _folders(place: Path) -> list[str]:
    """The names of the folders in a folder."""
    if not place.is_dir():
        raise ValueError(f"{place}: no such folder. ImageNet should have\n{_LAYOUT}")
    if not (found := sorted(entry.name for entry in place.iterdir() if entry.is_dir())):
        raise ValueError(f"{place}: has no folders of classes")
    return found


def _numbered(place: Path) -> dict[str, int]:
    """Folders whose names are the numbers of classes. (As sorted texts they would be 0, 1, 10, 100, ...)"""
    names = _folders(place)
    for name in names:
        if not (name.isdecimal() and int(name) < CLASSES):
            raise ValueError(f"{place / name}: a folder's name must be a class, 0 to {CLASSES - 1}")
    return {name: int(name) for name in names}


def _listed(place: Path, numbers: dict[str, int]) -> tuple[list[Path], np.ndarray]:
    """The files in the folders of a place, and their classes."""
    files, classes = [], []
    for name in _folders(place):
        if name not in numbers:
            raise ValueError(f"{place / name}: there is no such class in the folder train")
        own = sorted(path for path in (place / name).iterdir() if path.suffix.lower() in _ENDINGS)
        if not own:
            raise ValueError(f"{place / name}: has no pictures ({', '.join(_ENDINGS)})")
        files += own
        classes += [numbers[name]] * len(own)
    return files, np.array(classes, np.int64)


def open_cifar10(directory: Path) -> Data:
    """CIFAR-10: 45,000 pictures to train, 5,000 to validate, 10,000 to test."""
    parts = [published.read(name, directory, among=_CIFAR) for name in _CIFAR]
    (images, labels), (held_out, classes) = ((x.reshape(-1, 3, 32, 32), y) for x, y in parts)
    order = np.random.default_rng(0).permutation(len(images))
    train, validation = (
        PictureTable(images[rows], labels[rows], shift=4) for rows in (order[:45_000], order[45_000:])
    )
    return Data(
        train, validation, PictureTable(held_out, classes, shift=4), "random split of the training pictures"
    )


def open_random() -> Data:
    """Each class has a pattern of its own, under noise."""
    draw = np.random.default_rng(0)
    patterns = draw.normal(size=(RANDOM["classes"], 3, 16, 16))

    def split(rows: int) -> PictureTable:
        classes = draw.integers(0, len(patterns), rows)
        images = 128 + 40 * patterns[classes] + 20 * draw.normal(size=(rows, 3, 16, 16))
        return PictureTable(images.clip(0, 255).astype(np.uint8), classes, shift=1)

    return Data(split(80), split(24), split(24), "random pictures")


RANDOM = {"classes": 4}
_KNOWN = published.KNOWN["cifar10"]
_MOSAICS = tuple(File(f"cifar10/{name}") for name in ("labels.npz", "test_00.webp", "test_01.webp"))
_CIFAR = {
    "cifar10": _KNOWN,
    "cifar10's test": Known(
        _KNOWN.page,
        (
            Form((published.CIFAR_BINARY,), partial(published.cifar_binary, part="test")),
            Form(_MOSAICS, partial(published.cifar_mosaics, part="test")),
        ),
    ),
}
