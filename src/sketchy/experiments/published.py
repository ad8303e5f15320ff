"""Public data sets: where each is published, the checksums of its files, and how they are read.

A data set is in a data directory, in one of several formats. Files are checked against their checksums before
they are read. Downloads are checked before they get their names.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import numpy as np

Read = tuple[Any, np.ndarray]  # features (rows, d), an array or a scipy CSR matrix; labels (rows,)

MAX_GIB = 4.0  # of memory for the numbers of a file

UNPACK: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True)
class File:
    """A published file: its path in the data directory, its checksum, its address."""

    path: str  # the file may also be there without its folder, or compressed (.bz2, .gz or .xz)
    sha256: str = ""  # of the uncompressed content; empty if the reader checks it
    url: str = ""  # empty if `--download` is not possible

    def __post_init__(self) -> None:
        if self.url and len(self.sha256) != 64:
            raise ValueError(f"{self.path}: can be downloaded from {self.url}, so it must have a sha256")


@dataclass(frozen=True)
class Form:
    """A format of a data set: its files, and the function that reads them."""

    files: tuple[File, ...]
    reader: Callable[..., Read]


@dataclass(frozen=True)
class Known:
    """A public data set: where it is published, and the formats that are accepted."""

    page: str
    forms: tuple[Form, ...]  # messages name the first one, and it is the one to download
    hints: tuple[str, ...] = ()


def read(
    name: str, directory: Path, *, download: bool = False, among: Mapping[str, Known] | None = None
) -> Read:
    """Features and labels of a known data set. If it is missing, the error says how to get it."""
    known = (among or KNOWN)[name]
    forms = known.forms
    form = next((form for form in forms if all(_find(directory, file) for file in form.files)), forms[0])
    with ExitStack() as stack:
        contents = []
        for file in form.files:
            place = _find(directory, file)
            if place is None:
                if not (download and file.url):
                    raise ValueError(_missing(name, known, directory))
                place = fetch(file, directory)
            packing = _packing(file, place)
            _check(file, place, packing, complaint=f"{place}: not the {name} that was published")
            contents.append(stack.enter_context(opened(place, packing)))
        return form.reader(*contents)


def fetch(file: File, directory: Path) -> Path:
    """Download a file and check it. It gets its name only when it is complete and correct."""
    target = directory / Path(file.path).parent / file.url.rsplit("/", 1)[-1]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise ValueError(f"{target.parent}: can't be written: {error.strerror}") from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out, urllib.request.urlopen(file.url, timeout=60) as answer:
            shutil.copyfileobj(answer, out)
        _check(file, part, _packing(file, target), complaint=f"{file.url}: not what was published")
        part.chmod(0o644)  # mkstemp makes files that only their owner can read
        return part.replace(target)
    except (OSError, HTTPException) as error:
        raise ValueError(f"{file.url}: download failed: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def opened(place: Path, packing: str) -> IO[bytes]:
    content: IO[bytes] = UNPACK.get(packing, open)(place, "rb")
    return content


class _Lines:
    """The lines of a text. Raises ValueError when text or numbers would take too much memory.

    A small compressed file may hold any amount of text, even in a single line.
    """

    def __init__(self, content: IO[bytes], most: float) -> None:
        self.content, self.most, self.read = content, most, content.read  # scikit-learn asks for `read`

    def __iter__(self) -> Iterator[bytes]:
        text, entries = 0, 0
        while line := self.content.readline(_LONGEST_LINE + 1):
            text, entries = text + len(line), entries + line.count(b":")
            if len(line) > _LONGEST_LINE:
                raise ValueError(f"a line of more than {_LONGEST_LINE:,} bytes")
            if max(text, _ENTRY * entries) > self.most:
                raise ValueError(
                    f"its numbers take more than {self.most / 2**30:g} GiB; --max-gib allows more"
                )
            yield line


_LONGEST_LINE = 1 << 28
_ENTRY = 16  # bytes of an index and a value


def parse_svmlight(content: IO[bytes], features: int | None = None, max_gib: float = MAX_GIB) -> Read:
    """Features, as a scipy CSR matrix, and labels. Raises ValueError if the text is not svmlight."""
    from sklearn.datasets import load_svmlight_file

    try:
        X, y = load_svmlight_file(_Lines(content, max_gib * 2**30), n_features=features)
    except OverflowError as error:
        raise ValueError(f"an index is above {2**31 - 1:,}, the largest that is allowed") from error
    if len(bad := np.flatnonzero(~np.isfinite(y))):
        raise ValueError(f"the label of row {bad[0] + 1} is {y[bad[0]]}: must be a finite number")
    return X.tocsr(), y


def _find(directory: Path, file: File) -> Path | None:
    relative = Path(file.path)
    for place in (directory / relative, directory / relative.name):
        for packing in ("", *UNPACK):
            if (path := place.with_name(place.name + packing)).is_file():
                return path
    return None


def _packing(file: File, place: Path) -> str:
    """The suffix of our own compression; a published archive has none."""
    return place.name.removeprefix(Path(file.path).name)


def _check(file: File, place: Path, packing: str, *, complaint: str) -> None:
    if not file.sha256:
        return
    try:
        with opened(place, packing) as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    except (EOFError, OSError, lzma.LZMAError) as error:
        raise ValueError(f"{complaint}: {error}") from error
    if found != file.sha256:
        raise ValueError(f"{complaint}: sha256 {found}, expected {file.sha256}")


def _missing(name: str, known: Known, directory: Path) -> str:
    files = known.forms[0].files
    lines = [f"{name} is not in {directory} (--data-dir, else $SKETCHY_DATA); published at {known.page}"]
    for file in files:
        lines.append(
            f"  put it at {directory / file.path} (or with .bz2, .gz, .xz); unpacked sha256 {file.sha256}"
        )
        lines += [f"    from {file.url}"] if file.url else []
    lines += ["  or add --download"] if all(file.url for file in files) else []
    return "\n".join([*lines, *(f"  {hint}" for hint in known.hints)])


def _gisette(values: IO[bytes], labels: IO[bytes]) -> Read:
    """LIBSVM's gisette_scale from UCI's files: each feature mapped to [-1, 1], constant ones to 0."""
    X = np.loadtxt(values)
    low, high = X.min(0), X.max(0)
    varies = high > low
    return np.where(varies, 2 * (X - low) / np.where(varies, high - low, 1) - 1, 0.0), np.loadtxt(labels)


def _mnist49(images: IO[bytes], labels: IO[bytes]) -> Read:
    """The digits 4 (negative) and 9 (positive), pixels 0..255."""
    X = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 28 * 28)
    y = np.frombuffer(labels.read(), np.uint8, offset=8)
    pair = (y == 4) | (y == 9)
    return X[pair], (y[pair] == 9).astype(np.float64)


def cifar_mosaics(labels: IO[bytes], *mosaics: IO[bytes], part: str = "training") -> Read:
    """Lossless pictures of 200 x 25 images each. ``part``: training or test."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("cifar10 in .webp pictures needs Pillow: pip install pillow") from error

    def planes(mosaic: IO[bytes]) -> np.ndarray:
        grid = np.asarray(Image.open(mosaic).convert("RGB")).reshape(200, 32, 25, 32, 3)
        return grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3 * 32 * 32)

    with np.load(labels) as arrays:
        classes = arrays["train" if part == "training" else part]
        return _cifar(np.concatenate([planes(mosaic) for mosaic in mosaics]), classes, part)


def cifar_binary(archive: IO[bytes], part: str = "training") -> Read:
    names = [f"data_batch_{i}" for i in range(1, 6)] if part == "training" else ["test_batch"]
    with tarfile.open(fileobj=archive) as batches:
        files = [batches.extractfile(f"cifar-10-batches-bin/{name}.bin") for name in names]
        rows = np.frombuffer(b"".join(file.read() for file in files if file), np.uint8).reshape(-1, 1 + 3072)
    return _cifar(rows[:, 1:], rows[:, 0], part)


def _cifar_svmlight(content: IO[bytes]) -> Read:
    X, y = parse_svmlight(content, 3072)
    return _cifar(X.astype(np.uint8).toarray(), y)


def _cifar(planes: np.ndarray, labels: np.ndarray, part: str = "training") -> Read:
    """The red, green and blue planes of each image by rows, values 0..255, as LIBSVM has them."""
    images = np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    classes = np.ascontiguousarray(labels.astype(np.uint8))
    for what, values, expected in zip(("images", "labels"), (images, classes), CIFAR[part], strict=True):
        if (found := hashlib.sha256(values.data).hexdigest()) != expected:
            raise ValueError(f"not the {part} {what} of CIFAR-10: sha256 {found}, expected {expected}")
    return planes, labels


CIFAR = {  # sha256 of images (rows, 32, 32, 3) and of labels as bytes
    "training": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    "test": (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_GISETTE = "https://archive.ics.uci.edu/ml/machine-learning-databases/gisette/GISETTE"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"

_A9A = File(
    "libsvm/a9a",
    "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    f"{_LIBSVM}/binary/a9a",
)
CIFAR_BINARY = File(
    "cifar10/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    f"{_CIFAR}/cifar-10-binary.tar.gz",
)
_CIFAR_MOSAICS = (File("cifar10/labels.npz"), *(File(f"cifar10/train_{i:02}.webp") for i in range(10)))
_GISETTE_VALUES = File(
    "gisette/gisette_train.data",
    "6d4c5e998afe67937b9e77a3334e03c85e545ebc65a6eb1333ffc14125cfc389",
    f"{_GISETTE}/gisette_train.data",
)
_GISETTE_LABELS = File(
    "gisette/gisette_train.labels",
    "42bd681fe51b161f033df773df14a0116e492676555ab14616c1b72edc054075",
    f"{_GISETTE}/gisette_train.labels",
)
_MNIST_IMAGES = File(
    "mnist/train-images-idx3-ubyte",
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    f"{_MNIST}/train-images-idx3-ubyte.gz",
)
_MNIST_LABELS = File(
    "mnist/train-labels-idx1-ubyte",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    f"{_MNIST}/train-labels-idx1-ubyte.gz",
)
_PCMAC = File("libsvm/pcmac", "f7de9df321446c5156729b1077b94b8072c43f2e1ab31db5367392ab54c90e25")

KNOWN: dict[str, Known] = {
    "a9a": Known(f"{_LIBSVM}/binary.html#a9a", (Form((_A9A,), partial(parse_svmlight, features=123)),)),
    "cifar10": Known(
        f"{_CIFAR}/cifar.html",
        (
            Form((CIFAR_BINARY,), cifar_binary),
            Form(_CIFAR_MOSAICS, cifar_mosaics),
            Form((File("libsvm/cifar10"),), _cifar_svmlight),
        ),
        (f"LIBSVM's cifar10.bz2 ({_LIBSVM}/multiclass.html#cifar10) in libsvm/ does as well",),
    ),
    "gisette_scale": Known(
        f"{_LIBSVM}/binary.html#gisette",
        (
            Form((_GISETTE_VALUES, _GISETTE_LABELS), _gisette),
            Form((File("libsvm/gisette_scale"),), partial(parse_svmlight, features=5000)),
        ),
        (
            "these are UCI's files, scaled here as LIBSVM did; LIBSVM's gisette_scale.bz2 in libsvm/ does as "
            "well, unchecked (we know no checksum of it)",
            "an excerpt does not do: the scaling needs all 6,000 rows",
        ),
    ),
    "mnist49": Known(
        "http://yann.lecun.com/exdb/mnist",
        (Form((_MNIST_IMAGES, _MNIST_LABELS), _mnist49),),
    ),
    "pcmac": Known(
        "https://github.com/jundongl/scikit-feature, skfeature/data/PCMAC.mat",
        (Form((_PCMAC,), partial(parse_svmlight, features=3289)),),
        ("as svmlight text: class 1 is -1, class 2 is +1, rows in the order of the file",),
    ),
}
