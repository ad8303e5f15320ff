"""Pictures as batches of bytes: files that are cropped when they are read, and small ones in memory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sketchy.experiments.workloads.workload import Batch, Draw
from sketchy.extras import missing

if TYPE_CHECKING:
    from PIL.Image import Image

AREA, ASPECT = (0.05, 1.0), (3 / 4, 4 / 3)  # of a random crop, MLPerf's
_TRIES = 10
_CENTRE = 0.875  # side of the central crop, of the shorter side of a picture


class PictureFiles:
    """A split of files with their classes. Each is read, cropped and resized when a batch needs it."""

    lengths: Tensor | None = None

    def __init__(self, files: Sequence[Path], classes: np.ndarray, *, side: int) -> None:
        self.files, self.classes, self.side = files, classes, side

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        """Random crops and flips if there is ``draw``, else central crops."""
        cut = [self._picture(self.files[row], None if draw is None else draw(row)) for row in rows]
        return {"images": torch.stack(cut), "labels": torch.from_numpy(self.classes[np.asarray(rows)])}

    def _picture(self, path: Path, draw: torch.Generator | None) -> Tensor:
        image = _opened(path)
        box = central_box(*image.size) if draw is None else random_box(*image.size, draw)
        small = image.resize((self.side, self.side), _pillow().Resampling.BICUBIC, box)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        flipped = draw is not None and float(torch.rand((), generator=draw)) < 0.5
        return pixels.flip(2) if flipped else pixels


class PictureTable:
    """A split of small pictures in memory, (rows, 3, side, side)."""

    lengths: Tensor | None = None

    def __init__(self, images: np.ndarray, classes: np.ndarray, *, shift: int) -> None:
        """``shift``: pixels by which a picture is moved at most; its edges are mirrored."""
        self.images, self.classes, self.shift = images, classes.astype(np.int64), shift

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        """Random shifts and flips if there is ``draw``."""
        chosen = np.asarray(rows)
        images = self.images[chosen]
        if draw is not None:
            images = np.stack([self._moved(x, draw(row)) for x, row in zip(images, rows, strict=True)])
        return {"images": torch.from_numpy(images), "labels": torch.from_numpy(self.classes[chosen])}

    def _moved(self, image: np.ndarray, draw: torch.Generator) -> np.ndarray:
        down, right = torch.randint(-self.shift, self.shift + 1, (2,), generator=draw).tolist()
        y, x = _mirrored(image.shape[1], down), _mirrored(image.shape[2], right)
        flipped = int(torch.randint(2, (), generator=draw))
        return image[:, y[:, None], x[::-1] if flipped else x]


def _mirrored(side: int, by: int) -> np.ndarray:
    """Which entry comes to each place if a line is moved; those beyond its ends are mirrored."""
    place = np.abs(np.arange(side) + by)
    return np.where(place < side, place, 2 * (side - 1) - place)


Box = tuple[float, float, float, float]  # left, upper, right, lower


def random_box(width: int, height: int, draw: torch.Generator) -> Box:
    """A part of a picture: area and aspect are drawn; the central one if it never fits."""
    for _ in range(_TRIES):
        area, shape, x, y = torch.rand(4, generator=draw, dtype=torch.float64).tolist()
        size = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        aspect = math.exp(math.log(ASPECT[0]) + shape * math.log(ASPECT[1] / ASPECT[0]))
        w, h = round(math.sqrt(size * aspect)), round(math.sqrt(size / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, upper, left + w, upper + h
    return central_box(width, height)


def central_box(width: int, height: int) -> Box:
    """The central square of a picture, with 0.875 of its shorter side."""
    side = _CENTRE * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def _opened(path: Path) -> "Image":
    """The whole picture, in red, green and blue."""
    try:
        with _pillow().open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's, for damaged files
        raise ValueError(f"{path}: can't be read as a picture: {error}") from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError(missing("Pillow", "vision")) from error
    return Image
