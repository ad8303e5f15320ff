"""The state of other optimizers, as formulas. Tests compare them with the real optimizers."""

import math

from sketchy.analysis.state import GROUPS, Held, Weight
from sketchy.optim.report import adamw_bytes

SOAP_LONGEST = 10_000  # max_precond_dim of SOAP's authors: a longer side has no factor and no basis
GGT_WINDOW = 200  # number of gradients that are kept, as GGT's authors chose
GALORE_RANK = 128  # as in its README
CODED, CODES = 4096, 256  # 8-bit AdamW: weights with so many entries, in blocks of so many, with a scale each

_STEP = adamw_bytes(0, 0)  # bytes of the step counter beside each weight


def sgd(w: Weight) -> Held:
    return Held(momentum=w.bytes)


def adamw(w: Weight) -> Held:
    return Held(w.bytes, w.bytes, _STEP)


def adamw_8bit(w: Weight) -> Held:
    """Torchao's and bitsandbytes' rule; torchao keeps a table of 256 floats beside each moment."""
    if w.count < CODED or w.count % CODES:
        return adamw(w)
    scales = 4 * (w.count // CODES)
    return Held(w.count + scales, w.count + scales, _STEP + 2 * 4 * 256)


def adafactor(w: Weight) -> Held:
    """Torch's Adafactor: moments of rows and columns of the last two axes, no momentum."""
    if len(w.shape) < 2:
        return Held(0, w.bytes, _STEP)
    *stack, m, n = w.shape
    return Held(0, math.prod(stack) * (m + n) * w.dtype.itemsize, _STEP)


def adafactor_momentum(w: Weight) -> Held:
    """The same with beta1, as other versions have it."""
    return adafactor(w) + sgd(w)


def muon(w: Weight) -> Held:
    """Momentum for hidden matrices, AdamW for all else."""
    return sgd(w) if _hidden_matrix(w) else adamw(w)


def galore(w: Weight) -> Held:
    """Adam's moments of a gradient that is projected on its shorter side, and the basis of that side."""
    if not _hidden_matrix(w):
        return Held(w.bytes, w.bytes)
    short, long = sorted(w.shape)
    rank, size = min(GALORE_RANK, short), w.dtype.itemsize
    return Held(long * rank * size, (long + short) * rank * size)


def soap(w: Weight) -> Held:
    """A factor and a basis for each side of (first axis, all others), and Adam's two moments."""
    if len(w.shape) < 2:
        return adamw(w)
    sides = (w.shape[0], math.prod(w.shape[1:]))
    squares = sum(d * d for d in sides if d <= SOAP_LONGEST)
    return Held(w.bytes, w.bytes + 2 * squares * w.dtype.itemsize, _STEP)


def ggt(w: Weight) -> Held:
    return Held(second_moment=GGT_WINDOW * w.bytes)


def _hidden_matrix(w: Weight) -> bool:
    return len(w.shape) == 2 and w.group == GROUPS[0]
