"""Pictures: folders and their labels, crops, damaged files, CIFAR-10."""

import hashlib
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.workloads.places import SHARED, draw
from sketchy.experiments.workloads.resnet50 import ResNet50
from sketchy.experiments.workloads.resnet50.pictures import (
    AREA,
    ASPECT,
    PictureTable,
    _mirrored,
    central_box,
    random_box,
)
from sketchy.experiments.workloads.resnet50.sets import TEST
from sketchy.experiments.workloads.workload import Data

Image = pytest.importorskip("PIL.Image")
WORKLOAD = ResNet50()
TINY = WORKLOAD.presets["tiny"].scale
WNIDS = ("n01440764", "n01443537", "n01484850")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with a tiny ImageNet: 3 classes of 4 pictures, and ImageNet v2's folders 0, 2, 10."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    for part, count in (("train", 4), ("val", 2)):
        for name in WNIDS:
            for i in range(count):
                _write(tmp_path / "imagenet" / part / name / f"{name}_{i}.JPEG", pixels)
    for name in ("0", "2", "10"):
        _write(tmp_path / "imagenet" / TEST / name / "a.jpeg", pixels)
    return tmp_path


def _write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "JPEG")


def opened(directory: Path) -> Data:
    return WORKLOAD.sources["imagenet"].open(directory, TINY)


def test_classes_are_places_among_the_sorted_names_and_of_the_test_the_numbers(root: Path) -> None:
    data = opened(root)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [12, 6, 3]
    assert data.train.batch(range(12), None)["labels"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert sorted(data.test.batch(range(3), None)["labels"].tolist()) == [0, 2, 10], "not 0, 1, 2"
    batch = data.validation.batch([5, 0], draw)
    assert batch["images"].shape == (2, 3, 16, 16) and batch["images"].dtype == torch.uint8
    assert batch["labels"].tolist() == [2, 0]


def test_the_folder_itself_may_be_given_and_the_test_may_lie_beside_it(root: Path) -> None:
    shutil.move(root / "imagenet" / TEST, root / TEST)
    assert len(opened(root / "imagenet").test) == 3


Break = Callable[[Path], object]
BROKEN: dict[str, tuple[Break, str]] = {
    "nothing there": (lambda r: shutil.rmtree(r), r"imagenet is not in .*\n.*train/WNID/\*\.JPEG"),
    "no validation": (lambda r: shutil.rmtree(r / "val"), r"imagenet/val: no such folder.*\n.*val/WNID"),
    "no test": (lambda r: shutil.rmtree(r / TEST), rf"{TEST}: no such folder(.*\n)*.*ImageNetV2"),
    "train without classes": (lambda r: _empty(r / "train"), "imagenet/train: has no folders of classes"),
    "a class without pictures": (
        lambda r: _empty(r / "train" / WNIDS[1]),
        f"train/{WNIDS[1]}: has no pictures",
    ),
    "an unknown class": (lambda r: (r / "val" / "n999").mkdir(), "val/n999: there is no such class"),
    "a label too large": (
        lambda r: (r / TEST / "1000").mkdir(),
        f"{TEST}/1000: .* must be a class, 0 to 999",
    ),
    "a label in words": (lambda r: (r / TEST / "fish").mkdir(), f"{TEST}/fish: .* must be a class, 0 to 999"),
}


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_layout_is_refused_before_the_first_step(case: str, root: Path) -> None:
    change, message = BROKEN[case]
    change(root / "imagenet")
    with pytest.raises(ValueError, match=message):
        opened(root)


def test_a_missing_pillow_is_named_with_its_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(root)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"Pillow is missing; pip install '.\[vision\]'"):
        data.train.batch([0], None)


@pytest.mark.parametrize("keep", [0, 10, 400])
def test_a_truncated_picture_is_named(keep: int, root: Path) -> None:
    data, path = opened(root), root / "imagenet/train" / WNIDS[0] / f"{WNIDS[0]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"{path}: can't be read as a picture"):
        data.train.batch(range(4), draw)


def test_a_gray_picture_has_three_equal_colours(root: Path) -> None:
    path = root / "imagenet/val" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG"
    Image.fromarray(np.arange(2000, dtype=np.uint32).astype(np.uint8).reshape(40, 50)).save(path)
    images = opened(root).validation.batch([0], None)["images"]
    assert torch.equal(images[0, 0], images[0, 1]) and torch.equal(images[0, 0], images[0, 2])


def test_a_look_sees_the_central_crop(root: Path) -> None:
    path = root / "imagenet/val" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG"
    with Image.open(path) as picture:  # 0.875 * 40 = 35 pixels, from (50 - 35) / 2 and (40 - 35) / 2
        expected = picture.resize((16, 16), Image.Resampling.BICUBIC, (7.5, 2.5, 42.5, 37.5))
    found = opened(root).validation.batch([0], None)["images"][0]
    assert np.array_equal(found.permute(1, 2, 0).numpy(), np.array(expected))


def test_augmentation_follows_from_the_numbers_of_a_row_alone(root: Path) -> None:
    for split in (opened(root).train, WORKLOAD.sources["synthetic"].open(root, TINY).train):
        one, again = split.batch([0, 1, 2], draw), split.batch([2], draw)
        assert torch.equal(one["images"][2:], again["images"])
        other = split.batch([2], lambda row: torch.Generator().manual_seed(row + 77))
        assert not torch.equal(other["images"], again["images"])
        assert torch.equal(split.batch([1], None)["images"], split.batch([0, 1], None)["images"][1:])


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 10**6))
def test_random_crops_lie_in_the_picture_and_have_the_drawn_areas(width: int, height: int, seed: int) -> None:
    left, upper, right, lower = random_box(width, height, torch.Generator().manual_seed(seed))
    assert 0 <= left < right <= width and 0 <= upper < lower <= height
    if (left, upper, right, lower) == central_box(width, height):
        return
    w, h = right - left, lower - upper  # whole pixels: up to half a pixel off
    assert (w + 0.5) * (h + 0.5) >= AREA[0] * width * height
    assert (w - 0.5) / (h + 0.5) <= ASPECT[1] and (w + 0.5) / (h - 0.5) >= ASPECT[0]


def test_areas_of_random_crops_are_even() -> None:
    boxes = [random_box(400, 400, torch.Generator().manual_seed(i)) for i in range(2000)]
    areas = np.array([(r - l) * (b - u) / 160_000 for l, u, r, b in boxes])
    assert np.quantile(areas, 0.02) < 0.1 and areas.max() > 0.9
    assert abs(np.median(areas) - 0.5) < 0.05


@pytest.mark.parametrize("by", range(-4, 5))
def test_a_moved_picture_is_a_part_of_one_with_mirrored_edges(by: int) -> None:
    line = np.arange(9)
    assert np.array_equal(line[_mirrored(9, by)], np.pad(line, 4, "reflect")[4 + by : 13 + by])


def test_shifts_and_flips_are_all_drawn() -> None:
    image = np.arange(9 * 9 * 3, dtype=np.uint8).reshape(1, 3, 9, 9)
    table = PictureTable(image, np.zeros(1), shift=1)
    kinds = {
        table.batch([0], lambda _, seed=seed: torch.Generator().manual_seed(seed))["images"].numpy().tobytes()
        for seed in range(300)
    }
    assert len(kinds) == 2 * 3 * 3


def test_cifar10_has_45_000_5_000_and_10_000_pictures_of_which_none_is_in_two_splits() -> None:
    try:
        data = WORKLOAD.sources["cifar10"].open(SHARED, TINY)
    except ValueError as error:
        if "is not in" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise
    splits = (data.train, data.validation, data.test)
    assert [len(split) for split in splits] == [45_000, 5_000, 10_000]
    for split in splits:
        counts = np.bincount(split.classes)
        assert len(counts) == 10 and counts.std() < 0.1 * counts.mean()
    train, validation, test = ({hashlib.md5(x.tobytes()).digest() for x in split.images} for split in splits)
    assert not train & validation and not train & test and not validation & test
    sides = data.train.images.shape[1:]
    assert sides == (3, 32, 32) and math.isclose(data.train.images.mean() / 255, 0.4734, abs_tol=0.002)


def test_a_missing_cifar10_says_where_it_is_published(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cifar10 is not in .*; published at"):
        WORKLOAD.sources["cifar10"].open(tmp_path, TINY)
