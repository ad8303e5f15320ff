"""Momentum: an average of gradients, as large as the weight. It is stored in a float dtype or in few bits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sketchy.core import momentum, quantize
from sketchy.core.axes import fold, unfold
from sketchy.core.sketch import Sketch
from sketchy.core.spread import total
from sketchy.core.tasks import Task
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.parts.few_bits import FEWEST, EightBits, FourBits
from sketchy.optim.parts.sketches import Axis, Sketches
from sketchy.optim.slots import Codec, Meaning, Slots
from sketchy.optim.stack import Gradient, Stack

Known = Sequence[Sketch | None]  # the sketches of all axes

# The relative error of momentum in few bits, against which preconditioners damp. The scale of a block of 128
# normal numbers is about 3 root mean squares: rounding to 8 bits errs by 3 / (127 √12) of it, and the decayed
# errors of earlier steps double this. In 4 bits the same damping is enough, since the strong directions are
# in the coordinates. Without damping, SketchySOAP's steps were up to 44 times as long on steep spectra.
_ROUNDING = 2 / 127

COORDINATES = "momentum_coordinates"  # a slot


@dataclass(frozen=True)
class Momentum:
    """Momentum in a float dtype; if it is that of the arithmetic, it is updated in place."""

    slots: Slots = field(default_factory=dict)  # empty with beta1 = 0
    rounding: float = 0.0  # relative rounding error of an entry, if it is stored in a shorter dtype

    @staticmethod
    def of(weight: WeightSpec, statistics: Sketches) -> "Momentum":
        if not weight.options["momentum"]:
            return Momentum()
        on_adams_path = not statistics.axes
        option = "adam_dtype" if on_adams_path and weight.options["adam_dtype"] else "momentum_dtype"
        bits = {"int8": 8, "int4": 4}.get(weight.options[option])
        if bits and on_adams_path and math.prod(weight.layout.shape) < FEWEST:
            bits, weight = None, replace(weight, options={**weight.options, option: None})
        if bits is None:
            codec = Codec(weight.dtype(option), weight.work)
            return Momentum({"momentum": weight.slot(Meaning.MOMENTUM, codec)}, codec.rounding)
        axis = _thin(statistics) if bits == 4 else None
        return InEightBits.made(weight) if axis is None else InFourBits.made(weight, axis)

    def update(self, stack: Stack, G: Gradient, old: Known, new: Known) -> Task[tuple[Tensor, Tensor]]:
        """Add the gradient. Return x (K, *shape), a new tensor, and scale (K,): the momentum is scale * x.

        ``old``, ``new``: the sketches before and after this gradient. x has no rounding error of this step.
        """
        if not self.slots:
            return G.whole.clone(), torch.ones_like(stack.count, dtype=torch.float64)
        in_place = self.slots["momentum"].codec.plain and type(self) is Momentum
        return (
            yield from momentum.advance_(
                stack.own("momentum") if in_place else self.read(stack, old),
                G.whole,
                stack.group["betas"][0],
                stack.count,
                moving_average=stack.group["moving_average_momentum"],
                nesterov=stack.group["nesterov"],
                good=stack.good,
                keep=None if in_place else lambda M: self.write(stack, M, new, G.whole),
            )
        )

    def read(self, stack: Stack, sketches: Known) -> Tensor:
        """The stored momenta (K, *shape), in new memory, in the dtype of the arithmetic."""
        slot, own = self.slots["momentum"], stack.own("momentum")
        M = torch.empty(len(own), *own[0].shape, dtype=slot.codec.work, device=own[0].device)
        for value, stored in zip(M, own, strict=True):
            value.copy_(slot.codec.decode(stored))
        return M

    def write(self, stack: Stack, M: Tensor, sketches: Known, G: Tensor | None = None) -> Task[None]:
        """Store the momenta M (K, *shape). ``sketches``, ``G`` (K, *shape): the newest, if there are any."""
        yield from ()
        for value, stored in zip(M, stack.own("momentum"), strict=True):
            stored.copy_(self.slots["momentum"].codec.encode(value))

    def error(self, stack: Stack, sketches: Known) -> float | None:
        """The expected relative error of one rounding to few bits; None if momentum is not stored in few."""
        return None

    @property
    def stacks(self) -> float:
        """What a step holds for it beside a stack of gradients and one of momenta, in stacks."""
        return 0.0


@dataclass(frozen=True)
class InEightBits(Momentum):
    """One code for each entry."""

    codes: EightBits | FourBits = field(kw_only=True)

    @classmethod
    def made(cls, weight: WeightSpec) -> "InEightBits":
        codes = EightBits("momentum", weight)
        return cls(codes.slots, _ROUNDING, codes=codes)

    def read(self, stack: Stack, sketches: Known) -> Tensor:
        return self.codes.read(stack)

    def write(self, stack: Stack, M: Tensor, sketches: Known, G: Tensor | None = None) -> Task[None]:
        yield from self.codes.write(stack, M)

    def error(self, stack: Stack, sketches: Known) -> float | None:
        M = self.read(stack, sketches).reshape(self.codes.rows_of(stack))
        return float(quantize.relative_error(M, stack["momentum_scale"], self.codes.levels))

    @property
    def stacks(self) -> float:
        return 0.5  # old and new codes


@dataclass(frozen=True)
class InFourBits(InEightBits):
    """M = U C + R: coordinates C in the basis U of a sketch, in bfloat16, and codes of 4 bits for the rest R.

    C = bf16(Uᵀ M), and R = M - U C takes up the rounding error of C. Of all bases, U is that of the
    longest axis; then C is smallest.
    """

    axis: Axis = field(kw_only=True)

    @classmethod
    def made(cls, weight: WeightSpec, axis: Axis) -> "InFourBits":  # type: ignore[override]
        codes = FourBits("momentum", weight)
        shape = axis.rank, math.prod(weight.layout.block) // axis.dim
        follows = (None, 1 - axis.index if len(weight.layout.block) == 2 else None)
        C = weight.block_slot(Meaning.MOMENTUM, Codec(torch.bfloat16, weight.work), shape, follows)
        return cls({**codes.slots, COORDINATES: C}, _ROUNDING, codes=codes, axis=axis)

    @cached_property
    def _is_matrix(self) -> bool:
        """Whether the weight is one block, and the rows of this block are those of the codes."""
        return self.codes.weight.layout.block == self.codes.rows

    def read(self, stack: Stack, sketches: Known) -> Tensor:
        R, sketch = self.codes.read(stack), sketches[self.axis.index]
        assert sketch is not None
        (C,) = stack.read((COORDINATES,))
        if self._is_matrix:
            R.reshape(len(R), *self.codes.rows_of(stack)).baddbmm_(*self._factors(sketch.basis, C))
            return R
        return R.add_(self._product(stack, sketch.basis, C))

    def write(self, stack: Stack, M: Tensor, sketches: Known, G: Tensor | None = None) -> Task[None]:
        sketch = sketches[self.axis.index]
        assert sketch is not None
        U = yield from stack.plan.statistics.as_stored(stack, sketch)
        product = U.mT @ unfold(stack.layout.split(M), self.axis.index)
        short = (yield from total(product, sketch.spread)).to(torch.bfloat16)
        C = short.to(M.dtype)
        if self._is_matrix:
            yield from self.codes.write(stack, M, self._factors(U, C), G)
        else:
            R = self._product(stack, U, C)
            yield from self.codes.write(stack, torch.sub(M, R, out=R), G=G)
        yield from stack.store({COORDINATES: short})

    @property
    def stacks(self) -> float:
        return 0.5 if self._is_matrix else 2.5  # U C is formed, in blocks and as the weight

    def _factors(self, U: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        """A and B with A B = U C, or (U C)ᵀ if U is the basis of the columns."""
        return (U, C) if self.axis.index == 0 else (C.mT, U.mT)

    def _product(self, stack: Stack, U: Tensor, C: Tensor) -> Tensor:
        """U C in the shape of the weights, (K, *shape)."""
        layout = stack.layout
        like = torch.empty(len(U), *layout.block, device="meta")
        return layout.join(fold(U @ C, self.axis.index, like))


def _thin(statistics: Sketches) -> Axis | None:
    """The longest axis with a basis so thin that 4 bits and coordinates are smaller than 8 bits."""
    thin = (axis for axis in statistics.live if 4 * axis.rank < axis.dim and len(statistics.axes) > 1)
    return max(thin, key=lambda axis: axis.dim, default=None)
