"""Published files: checked, fetched whole or not at all, and well described when missing."""

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sketchy.experiments import published
from sketchy.experiments.data import load
from sketchy.experiments.published import File, Form, Known
from sketchy.experiments.tasks.sets import SETS

TEXT = b"+1 1:1\n-1 2:1\n+1 1:2\n"
SHA256 = hashlib.sha256(TEXT).hexdigest()


class _Server(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith("/cut/"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(TEXT[:10])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tiny").write_bytes(TEXT)
    (tmp_path / "site" / "tiny.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "site" / "other").write_bytes(b"+1 1:1\n")
    handler = partial(_Server, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    form = Form((File("libsvm/tiny", SHA256, url),), partial(published.parse_svmlight, features=2))
    monkeypatch.setitem(published.KNOWN, "tiny", Known("http://example.org/tiny", (form,)))


@pytest.mark.parametrize("name", ["tiny", "tiny.gz"])
def test_a_download_is_checked_and_put_where_it_is_found(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(monkeypatch, f"{server}/{name}")
    directory = tmp_path / "data"  # made when needed
    first = load("tiny", directory=directory, download=True)
    assert [path.name for path in (directory / "libsvm").iterdir()] == [name]
    publish(monkeypatch, "http://127.0.0.1:9/gone")
    assert load("tiny", directory=directory).digest() == first.digest()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("other", "not what was published: sha256 .*, expected"),
        ("absent", "download failed: HTTP Error 404"),
        ("cut/tiny", "not what was published"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    publish(monkeypatch, f"{server}/{path}")
    with pytest.raises(ValueError, match=message):
        load("tiny", directory=tmp_path, download=True)
    assert list((tmp_path / "libsvm").iterdir()) == []


def test_an_unreachable_publisher_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "http://127.0.0.1:9/tiny")
    with pytest.raises(ValueError, match="download failed") as caught:
        load("tiny", directory=tmp_path, download=True)
    assert "\n" not in str(caught.value)


def test_without_download_nothing_is_fetched(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, f"{server}/tiny")
    with pytest.raises(ValueError, match="add --download"):
        load("tiny", directory=tmp_path)
    assert not (tmp_path / "libsvm").exists()


@pytest.mark.parametrize("name", published.KNOWN)
def test_a_missing_set_says_where_it_is_published_where_to_put_it_and_its_checksum(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match=f"{name} is not in") as caught:
        load(name, directory=tmp_path)
    message, known = str(caught.value), published.KNOWN[name]
    assert known.page in message
    for file in known.forms[0].files:
        assert len(file.sha256) == 64
        assert file.sha256 in message
        assert str(tmp_path / file.path) in message
        assert file.url in message
    assert ("--download" in message) == all(file.url for file in known.forms[0].files)


def test_a_changed_file_under_a_known_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a9a").write_bytes(TEXT)  # a flat directory is accepted too, so this one is found
    with pytest.raises(ValueError, match="not the a9a that was published: sha256"):
        load("a9a", directory=tmp_path)


def test_gisette_is_scaled_as_libsvm_did() -> None:
    values = io.BytesIO(b"0 5 7\n10 5 8\n5 5 7\n")
    X, y = published.KNOWN["gisette_scale"].forms[0].reader(values, io.BytesIO(b"-1\n1\n1\n"))
    assert X.tolist() == [[-1, 0, -1], [1, 0, 1], [0, 0, -1]]
    assert y.tolist() == [-1, 1, 1]


def test_cifar10_is_the_same_from_its_binary_archive_and_from_libsvms_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (10, 3072), dtype=np.uint8)
    labels = np.arange(10, dtype=np.uint8)
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    arrays = np.ascontiguousarray(images), labels
    hashes = tuple(hashlib.sha256(array.data).hexdigest() for array in arrays)
    monkeypatch.setitem(published.CIFAR, "training", hashes)
    binary, _, text = published.KNOWN["cifar10"].forms
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for i in range(5):
            rows = slice(2 * i, 2 * i + 2)
            content = np.hstack([labels[rows, None], planes[rows]]).tobytes()
            info = tarfile.TarInfo(f"cifar-10-batches-bin/data_batch_{i + 1}.bin")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive.seek(0)
    lines = "".join(
        f"{label} " + " ".join(f"{i}:{v}" for i, v in enumerate(row, 1) if v) + "\n"
        for label, row in zip(labels, planes, strict=True)
    )
    for X, y in (binary.reader(archive), text.reader(io.BytesIO(lines.encode()))):
        assert np.array_equal(X, planes)
        assert np.array_equal(y, labels)
    with pytest.raises(ValueError, match="not the training images of CIFAR-10"):
        text.reader(io.BytesIO(lines.replace(":1 ", ":2 ").encode()))
    with pytest.raises(ValueError, match="not the training labels of CIFAR-10"):
        text.reader(io.BytesIO(lines.replace("\n3 ", "\n4 ").encode()))


def test_every_file_that_can_be_downloaded_has_a_checksum() -> None:
    with pytest.raises(ValueError, match="must have a sha256"):
        File("some/file", url="http://example.org/file")
    files = [
        f for known in (*published.KNOWN.values(), *SETS.values()) for form in known.forms for f in form.files
    ]
    assert len([file for file in files if file.url and len(file.sha256) == 64]) >= 6
