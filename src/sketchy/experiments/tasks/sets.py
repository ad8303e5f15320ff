"""The published data sets of the tasks, as arrays of inputs and targets."""

from pathlib import Path
from typing import IO

import numpy as np

from sketchy.experiments import published
from sketchy.experiments.data import data_directory
from sketchy.experiments.published import File, Form, Known, Read
from sketchy.experiments.tasks.molecules import packed


def read(name: str, *, directory: str | Path | None = None, download: bool = False) -> Read:
    """Inputs and targets of a data set. If it is missing, an error says how to get it."""
    return published.read(name, data_directory(directory), download=download, among=SETS)


def _characters(content: IO[bytes]) -> Read:
    """Each character (except the last) and the next one, as indices in the sorted alphabet."""
    points = np.frombuffer(content.read().decode().encode("utf-32-le"), np.uint32)
    ids = np.unique(points, return_inverse=True)[1].astype(np.uint8)
    return ids[:-1], ids[1:]


def _mnist(images: IO[bytes], labels: IO[bytes]) -> Read:
    pixels = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 28 * 28)
    return pixels.copy(), np.frombuffer(labels.read(), np.uint8, offset=8).copy()  # writable, as torch wants


_TEXT = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_WAR_AND_PEACE = "bf5b273d9246268f96663c43c00a1055ae2e42c2262be32f7e43b48dd123451a"
_TOX21 = "d204004d2cfdaf79f65d888376d4c0dba3270f58ea4bbf311cb444d311c35aeb"
_CHAR_RNN = "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
_MNIST49 = published.KNOWN["mnist49"]  # images and labels of all ten digits

SETS: dict[str, Known] = {
    "tinyshakespeare": Known(
        "https://github.com/karpathy/char-rnn",
        tuple(
            Form((file,), _characters)
            for file in (  # under its published name, and under our own
                File("text/input.txt", _TEXT, f"{_CHAR_RNN}/data/tinyshakespeare/input.txt"),
                File("text/tinyshakespeare.txt", _TEXT),
            )
        ),
    ),
    "warandpeace": Known(
        "https://github.com/timbmg/RNNLM, data/warandpeace.txt",
        (Form((File("text/warandpeace.txt", _WAR_AND_PEACE),), _characters),),
    ),
    "tox21": Known(
        "https://moleculenet.org as SMILES, made into graphs with RDKit",
        (Form((File("molecules/tox21_graphs.npz", _TOX21),), packed),),
    ),
    "mnist": Known(_MNIST49.page, (Form(_MNIST49.forms[0].files, _mnist),)),
    "cifar10": published.KNOWN["cifar10"],
}
