"""Data sets: rows have the content of the file, with the constant as last feature."""

import bz2
import gzip
import lzma
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_svmlight_file

from sketchy.experiments import published
from sketchy.experiments.data import data_directory, load

SHARED = Path(os.environ.get("SKETCHY_DATA") or Path(__file__).parents[3] / "shared" / "data")
PACK = {"": lambda text: text, ".bz2": bz2.compress, ".gz": gzip.compress, ".xz": lzma.compress}
TEXT = b"""+1 1:0.5 3:-2 # a comment
-1 2:1e3

2 1:7 4:0.25
0 3:1
"""


def needs(name: str, *files: str) -> pytest.MarkDecorator:
    absent = [file for file in files if not (SHARED / file).exists()]
    return pytest.mark.skipif(bool(absent), reason=f"{name} is not in {SHARED}: {', '.join(absent)} missing")


def write(path: Path, text: bytes, packing: str = "") -> str:
    place = path / f"some{packing}"
    place.write_bytes(PACK[packing](text))
    return str(place)


def by_hand(text: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    lines = [words for line in text.decode().splitlines() if (words := line.split("#")[0].split())]
    width = max(int(word.split(":")[0]) for words in lines for word in words[1:])
    X = torch.zeros(len(lines), width + 1, dtype=torch.float64)
    X[:, width] = 1
    for row, words in zip(X, lines, strict=True):
        for word in words[1:]:
            index, value = word.split(":")
            row[int(index) - 1] = float(value)
    return X, torch.tensor([float(words[0]) > 0 for words in lines])


@pytest.mark.parametrize("packing", PACK)
def test_an_svmlight_file_plain_or_packed_is_read_as_written(tmp_path: Path, packing: str) -> None:
    data = load(write(tmp_path, TEXT, packing))
    X, y = by_hand(TEXT)
    assert torch.equal(data.X, X)
    assert torch.equal(data.y, y)


def test_reading_equals_scikit_learn(tmp_path: Path) -> None:
    data = load(write(tmp_path, TEXT, ".xz"))
    X, y = load_svmlight_file(write(tmp_path, TEXT))
    assert np.array_equal(data.X[:, :-1].numpy(), X.toarray())
    assert np.array_equal(data.y.numpy(), y > 0)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ("0 255 3", torch.uint8),
        ("0 256 3", torch.float64),
        ("-1 2 3", torch.float64),
        ("1 2 0.5", torch.float64),
    ],
)
def test_small_storage_never_changes_a_value(tmp_path: Path, values: str, dtype: torch.dtype) -> None:
    numbers = [float(word) for word in values.split()]
    text = "".join(f"1 1:{value}\n" for value in numbers).encode()
    X = load(write(tmp_path, text)).X
    assert X.dtype == dtype
    assert X.double().tolist() == [[value, 1.0] for value in numbers]


def test_rows_are_the_first_of_the_shuffled_ones() -> None:
    whole, some = load("digits", shuffle=3), load("digits", shuffle=3, rows=50)
    assert torch.equal(whole.X[:50], some.X)
    assert torch.equal(whole.y[:50], some.y)
    plain = load("digits")
    assert not torch.equal(whole.X, plain.X)
    assert torch.equal(whole.X.sum(0), plain.X.sum(0))
    assert whole.digest() != plain.digest() == load("digits").digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a8a"}, "data='a8a': no such file or known data set; known are a9a, cifar10, "),
        ({"rows": 0}, "rows=0: must be from 1 to 1797, the number of rows of digits"),
        ({"rows": 1798}, "rows=1798: must be from 1 to 1797"),
        ({"shuffle": -1}, "shuffle=-1: must be at least 0"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        load(**{"name": "digits", **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "packing", "message"),
    [
        (b"not numbers\n", "", "cannot be read as an svmlight file"),
        (b"1 2:3 1:4\n", "", "cannot be read as an svmlight file"),
        (b"1 1:nan\n", "", "not finite"),
        (b"", "", "no rows|can't be read"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: bytes, packing: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, text, packing))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"1 1:1\n-1 1000000000:1\n",
            r"2 rows of 1,000,000,000 features take 14.9 GiB, more than 4;",
        ),
        (b"1 2147483648:1\n", "an index is above 2,147,483,647, the largest that is allowed"),
        (b"1 99999999999999999999:1\n", "an index is above 2,147,483,647"),
        (b"1 1:1\nnan 1:1\n", "the label of row 2 is nan: must be a finite number"),
        (b"-inf 1:1\n", "the label of row 1 is -inf"),
    ],
)
def test_numbers_that_no_data_has_are_refused_before_memory_is_taken(
    tmp_path: Path, text: bytes, message: str
) -> None:
    path = write(tmp_path, text)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert path in str(caught.value) and "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100 << 10  # in KiB


def test_the_limit_on_memory_counts_the_rows_that_are_used_and_can_be_raised(tmp_path: Path) -> None:
    path = write(tmp_path, b"1 1:1\n-1 100000:1\n")
    with pytest.raises(ValueError, match=r"0\.0 GiB, more than 0\.001; .* allow more with --max-gib"):
        load(path, max_gib=0.001)
    assert load(path, max_gib=0.001, rows=1).rows == 1
    assert load(path, max_gib=0.002).dim == 100_001
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"max-gib={bad}: must be above 0"):
            load(path, max_gib=bad)


@pytest.mark.parametrize("packing", [".bz2", ".gz", ".xz"])
@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (b"1 1:1\n", "take more than 0.001 GiB; --max-gib allows more"),
        (b"\n", "take more than 0.001 GiB; --max-gib allows more"),
        (b"1 " + b" " * 998, "a line of more than 100,000 bytes"),
    ],
    ids=["rows", "empty lines", "one line"],
)
def test_a_small_archive_of_much_text_is_refused(
    packing: str, piece: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "_LONGEST_LINE", 100_000)
    path = write(tmp_path, piece * (2_000_000 // len(piece)), packing)
    assert Path(path).stat().st_size < 10_000
    with pytest.raises(ValueError, match=message):
        load(path, max_gib=0.001)


def test_an_archive_of_broken_bytes_is_refused(tmp_path: Path) -> None:
    for packing, pack in PACK.items():
        content = bytearray(pack(TEXT * 1000))
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        path = tmp_path / f"broken{packing}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as an svmlight file"):
            load(str(path))


@pytest.mark.parametrize("packing", [".bz2", ".gz", ".xz"])
def test_a_cut_archive_is_refused(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"cut{packing}"
    path.write_bytes(PACK[packing](TEXT * 1000)[:-20])
    with pytest.raises(ValueError, match="cannot be read"):
        load(str(path))


def test_sorted_and_one_sided_labels_are_noted(tmp_path: Path) -> None:
    assert "sorted by label" in load(write(tmp_path, b"-1 1:1\n-1 1:2\n1 1:3\n")).notes()[0]
    assert "one class" in load(write(tmp_path, b"1 1:1\n2 1:2\n")).notes()[0]
    assert load("digits").notes() == []


def test_the_directory_is_the_given_one_then_the_environments_then_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKETCHY_DATA", "/from/environment")
    assert data_directory(tmp_path) == tmp_path
    assert data_directory() == Path("/from/environment")
    monkeypatch.delenv("SKETCHY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_directory() == Path("/cache/sketchy")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not a directory"):
        data_directory(tmp_path / "file")


@needs("a9a", "libsvm/a9a.bz2")
def test_a9a_is_the_papers() -> None:
    data = load("a9a", directory=SHARED)
    assert (data.rows, data.dim, int(data.y.sum())) == (32_561, 124, 7_841)
    assert int(data.X[:, :-1].sum()) == 451_592
    assert bool((data.X[:, -1] == 1).all())


@needs("pcmac", "libsvm/pcmac.bz2")
def test_pcmac_has_its_published_shape() -> None:
    data = load("pcmac", directory=SHARED)
    assert (data.rows, data.dim, int(data.y.sum())) == (1_943, 3_290, 961)


@needs("mnist", "mnist/train-images-idx3-ubyte.xz", "mnist/train-labels-idx1-ubyte.xz")
def test_mnist49_has_all_fours_and_nines() -> None:
    data = load("mnist49", directory=SHARED)
    assert (data.rows, data.dim, int(data.y.sum())) == (11_791, 785, 5_949)


@pytest.mark.slow
@needs("cifar10", "cifar10/labels.npz", *(f"cifar10/train_{i:02}.webp" for i in range(10)))
def test_cifar10_is_the_papers() -> None:
    data = load("cifar10", directory=SHARED)
    assert (data.rows, data.dim, int(data.y.sum())) == (50_000, 3_073, 45_000)
    with np.load(SHARED / "cifar10" / "labels.npz") as labels:
        assert np.array_equal(data.y.numpy(), labels["train"] > 0)
    red, green, blue = (
        data.X[:, plane * 1024 : (plane + 1) * 1024].double().mean().item() / 255 for plane in range(3)
    )
    assert (red, green, blue) == pytest.approx((0.49139968, 0.48215841, 0.44653091), abs=1e-8)
