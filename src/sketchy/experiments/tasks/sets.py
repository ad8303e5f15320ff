"""The published sets behind the tasks: found in the data directory, checked, and read whole."""

import hashlib
import lzma
from pathlib import Path

import numpy as np

from sketchy.experiments import published
from sketchy.experiments.data import data_directory
from sketchy.experiments.published import File, Read, opened

_TEXT = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_CHAR_RNN = "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
# the same text by our name and by the name it is published under
TINY_SHAKESPEARE = (
    File("text/tinyshakespeare.txt", _TEXT),
    File("text/input.txt", _TEXT, f"{_CHAR_RNN}/data/tinyshakespeare/input.txt"),
)
MNIST = published.KNOWN["mnist49"].forms[0].files  # images and labels of all ten digits


def read(name: str, *, directory: str | Path | None = None, download: bool = False) -> Read:
    """Inputs and targets of a set; if it is missing, an error that says how to get it."""
    place = data_directory(directory)
    if name == "tinyshakespeare":
        text = np.frombuffer(_content(name, TINY_SHAKESPEARE, place, download), np.uint8)
        ids = np.unique(text, return_inverse=True)[1].astype(np.uint8)  # places in the sorted alphabet
        return ids[:-1], ids[1:]  # every character, and the one that follows it
    if name == "mnist":
        images, labels = (_content(name, (file,), place, download) for file in MNIST)
        pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28 * 28)
        return pixels.copy(), np.frombuffer(labels, np.uint8, offset=8).copy()  # writable, as torch wants
    return published.read(name, place, download=download)


def _content(name: str, spellings: tuple[File, ...], directory: Path, download: bool) -> bytes:
    """The unpacked and checked content of a file that may lie there under several names, packed or not."""
    packings = ("", *published.UNPACK)
    places = [(directory / f"{file.path}{packing}", packing) for file in spellings for packing in packings]
    found = next((place for place in places if place[0].is_file()), None)
    origin = spellings[-1]
    if found is None:
        if not download:
            raise ValueError(
                f"{name} is not in {directory} (--data-dir, else $SKETCHY_DATA); published at {origin.url}"
                f"\n  put it at {places[0][0]} (or with .bz2, .gz, .xz); unpacked sha256 {origin.sha256}"
            )
        path = published.fetch(origin, directory)
        found = path, path.name.removeprefix(Path(origin.path).name)
    try:
        with opened(*found) as file:
            content = file.read()
    except (EOFError, OSError, lzma.LZMAError) as error:
        raise ValueError(f"{found[0]}: can't be read: {error}") from error
    if (digest := hashlib.sha256(content).hexdigest()) != origin.sha256:
        raise ValueError(f"{found[0]}: not the {name} that was published: sha256 {digest}")
    return content
