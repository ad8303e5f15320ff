"""The paper's Alg. 1, 2 and 3, dense and literal, on d x d matrices in float64. The tests compare with it.

Two more algorithms follow: S-Shampoo for weights with any number of axes, and SOAP. Read this file first.
Nothing in the package imports it; every fast version is tested against it. ``beta2`` below 1 gives the
exponentially weighted form of Sec. 4.3; 1 is the plain sum of Alg. 1 to 3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def pseudo_power(S: Tensor, power: float, threshold: float = 1e-14) -> Tensor:
    """S^power of a symmetric PSD matrix; zero eigenvalues stay zero (Sec. 4.1).

    Eigenvalues up to ``threshold`` times the largest count as zero.
    """
    lam, U = torch.linalg.eigh(S)
    live = lam > threshold * lam[-1].clamp(min=0)
    return (U * torch.where(live, torch.where(live, lam, 1.0) ** power, 0.0)) @ U.T


def fd_update(G_bar: Tensor, M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """FD-update (Alg. 1) of the sketch Ḡ (d x d) by M (d x d): returns ρ_t and the new sketch."""
    lam, U = torch.linalg.eigh(G_bar + M)  # line 3
    lam, U = lam.flip(0)[:rank], U.flip(1)[:, :rank]  # line 4, descending
    rho = lam[-1].clamp(min=0)  # rounding may turn a zero eigenvalue into -1e-17
    return rho, (U * (lam - lam[-1])) @ U.T  # line 5


@dataclass(frozen=True)
class DenseSketch:
    """Ḡ and ρ_{1:t} after t updates: exponentially weighted Frequent Directions (Sec. 4.3)."""

    G_bar: Tensor  # (d, d)
    rho: Tensor  # (): discounted by beta2, as Obs. 6 requires
    rank: int

    @classmethod
    def empty(cls, dim: int, rank: int) -> "DenseSketch":
        zero = torch.zeros(dim, dim, dtype=torch.float64)
        return cls(zero, torch.zeros((), dtype=torch.float64), min(rank, dim))

    def update(self, M: Tensor, beta2: float = 1.0) -> "DenseSketch":
        """(ρ_t, Ḡ_t) = FD-update(β₂ Ḡ_{t-1}, M_t), ρ_{1:t} = β₂ ρ_{1:t-1} + ρ_t."""
        rho_t, G_bar = fd_update(beta2 * self.G_bar, M.double(), self.rank)
        return DenseSketch(G_bar, beta2 * self.rho + rho_t, self.rank)

    def compensated(self) -> Tensor:
        """G̃ = Ḡ + ρ_{1:t} I (Alg. 2, line 6)."""
        return self.G_bar + self.rho * torch.eye(len(self.G_bar), dtype=torch.float64)


def whitening(C: Tensor, damping: float = 1e-3) -> Tensor:
    """W = (C / μ + damping I)^(-1/2), μ = tr C / d; the identity for C = 0 (ours, after KL-Shampoo)."""
    eye, mean = torch.eye(len(C), dtype=torch.float64), C.trace() / len(C)
    return pseudo_power(C / mean + damping * eye, -1 / 2) if mean > 0 else eye


def polar(D: Tensor, steps: int) -> Tensor:
    """Newton-Schulz steps X ← a X + b X Xᵀ X + c (X Xᵀ)² X, as in Muon, with the length of D at the end."""
    X = D / (D @ D.T).norm() ** 0.5
    for _ in range(steps):
        P = X @ X.T
        X = 3.4445 * X - 4.7750 * P @ X + 2.0315 * P @ P @ X
    return X * D.norm() / X.norm()


@dataclass(frozen=True)
class SAdagrad:
    """S-AdaGrad (Alg. 2): a point, and the sketch of its gradients."""

    x: Tensor  # (d,)
    sketch: DenseSketch

    @classmethod
    def start(cls, x: Tensor, rank: int) -> "SAdagrad":
        return cls(x.double(), DenseSketch.empty(len(x), rank))

    def step(
        self,
        g: Tensor,
        lr: float,
        beta2: float = 1.0,
        project: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> "SAdagrad":
        """Lines 5 and 6. ``project(y, S)`` is argmin over x in K of (y - x)ᵀ S (y - x), S = G̃^(1/2)."""
        g = g.double()
        sketch = self.sketch.update(torch.outer(g, g), beta2)
        G_tilde = sketch.compensated()
        y = self.x - lr * pseudo_power(G_tilde, -1 / 2) @ g
        return SAdagrad(project(y, pseudo_power(G_tilde, 1 / 2)) if project else y, sketch)


@dataclass(frozen=True)
class SShampoo:
    """S-Shampoo (Alg. 3): a matrix of weights, with one sketch for the left side and one for the right."""

    X: Tensor  # (m, n)
    left: DenseSketch
    right: DenseSketch

    @classmethod
    def start(cls, X: Tensor, rank: int) -> "SShampoo":
        m, n = X.shape
        return cls(X.double(), DenseSketch.empty(m, rank), DenseSketch.empty(n, rank))

    def step(self, G: Tensor, lr: float, beta2: float = 1.0, eps: float = 0.0) -> "SShampoo":
        """Lines 5 and 6. L̃ and R̃ start from ``eps`` I (line 2)."""
        G = G.double()
        left = self.left.update(G @ G.T, beta2)
        right = self.right.update(G.T @ G, beta2)
        L_tilde = left.compensated() + eps * torch.eye(len(G), dtype=torch.float64)
        R_tilde = right.compensated() + eps * torch.eye(G.shape[1], dtype=torch.float64)
        step = pseudo_power(L_tilde, -1 / 4) @ G @ pseudo_power(R_tilde, -1 / 4)
        return SShampoo(self.X - lr * step, left, right)


@dataclass(frozen=True)
class TensorShampoo:
    """S-Shampoo (Alg. 3) of a weight with N axes, with a sketch for each axis. At full rank it is Shampoo.

    An axis without a sketch is not preconditioned. The exponent is 1 / (2 * number of sketches), which is 1/4
    for a matrix.
    """

    X: Tensor  # (d_1, ..., d_N)
    sketches: tuple[DenseSketch | None, ...]

    @classmethod
    def start(cls, X: Tensor, rank: int, axes: tuple[int, ...] | None = None) -> "TensorShampoo":
        chosen = range(X.dim()) if axes is None else axes
        sketches = (DenseSketch.empty(d, rank) if i in chosen else None for i, d in enumerate(X.shape))
        return cls(X.double(), tuple(sketches))

    def step(
        self,
        G: Tensor,
        lr: float,
        beta2: float = 1.0,
        exponent: float | None = None,
        whiten: bool = False,
    ) -> "TensorShampoo":
        """Lines 5 and 6 for each axis: update the covariance of its fibres, apply the inverse root.

        With ``whiten``, each side of a matrix is whitened by the sketch of the other side.
        """
        fibres = [G.double().movedim(i, 0).flatten(1) for i in range(G.dim())]
        if whiten:
            left, right = (whitening(s.compensated()) for s in self.sketches if s)
            fibres = [fibres[0] @ right, fibres[1] @ left]
        sketches = tuple(s and s.update(A @ A.T, beta2) for s, A in zip(self.sketches, fibres, strict=True))
        power = -(exponent or 1 / (2 * sum(s is not None for s in sketches)))
        step = G.double()
        for i, sketch in enumerate(sketches):
            if sketch is not None:
                root = pseudo_power(sketch.compensated(), power)
                step = torch.tensordot(root, step, dims=([1], [i])).movedim(0, i)
        return TensorShampoo(self.X - lr * step, sketches)


@dataclass(frozen=True)
class Soap:
    """SOAP with a new basis in each step: Adam in the eigenbases of Shampoo's factors.

    When the bases rotate, second moments are transformed by squared cosines, as are variances of uncorrelated
    entries. Momentum is kept in the coordinates of the weight. With the graft ``factored``, a step has the
    length of an Adam step whose second moment is factored over rows and columns. With ``own``, a step is at
    least half as long as an Adam step with one second moment for each row.
    """

    X: Tensor  # (m, n)
    M: Tensor  # (m, n): momentum
    L: Tensor  # (m, m)
    R: Tensor  # (n, n)
    U_L: Tensor  # (m, m): eigenvectors of L
    U_R: Tensor  # (n, n)
    V: Tensor  # (m, n): second moment in the bases
    rows: Tensor  # (m,): second moment summed over each row
    columns: Tensor  # (n,)
    direction: Tensor  # (m,): mean squares of the rows of steps, averaged
    t: int = 0

    @classmethod
    def start(cls, X: Tensor) -> "Soap":
        X = X.double()
        m, n = X.shape
        L, R = X.new_zeros(m, m), X.new_zeros(n, n)
        zero = torch.zeros_like(X)
        return cls(X, zero, L, R, L, R, zero, zero.sum(1), zero.sum(0), zero.sum(1))

    def step(
        self,
        G: Tensor,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-7,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        graft: str | None = None,
        refresh: bool = True,
        row_norm: float | None = None,
        whiten: bool = False,
        sketch_beta2: float | None = None,
        polar_steps: int = 0,
    ) -> "Soap":
        """One step. Without ``refresh`` the factors and bases stay the same.

        With ``whiten``, each side of the gradient is whitened by the other factor before it is added.
        """
        (beta1, beta2), G, t = betas, G.double(), self.t + 1
        L, R, U_L, U_R, V = self.L, self.R, self.U_L, self.U_R, self.V
        if refresh:
            beta3 = beta2 if sketch_beta2 is None else sketch_beta2
            A, B = (G @ whitening(R), G.T @ whitening(L)) if whiten else (G, G.T)
            L, R = beta3 * L + A @ A.T, beta3 * R + B @ B.T
            U_L, U_R = torch.linalg.eigh(L)[1], torch.linalg.eigh(R)[1]
            O_L, O_R = U_L.T @ self.U_L, U_R.T @ self.U_R
            V = (O_L * O_L) @ V @ (O_R * O_R).T
        V = beta2 * V + (1 - beta2) * (U_L.T @ G @ U_R) ** 2
        rows = beta2 * self.rows + (1 - beta2) * (G**2).sum(1)
        columns = beta2 * self.columns + (1 - beta2) * (G**2).sum(0)

        M = beta1 * self.M + (1 - beta1) * G
        ahead = M / (1 - beta1**t)
        if nesterov:
            ahead = beta1 * ahead + (1 - beta1) * G
        filled = 1 - beta2**t
        step = U_L @ (U_L.T @ ahead @ U_R / _damped((V / filled) ** 0.5, eps)) @ U_R.T
        step = polar(step, polar_steps) if polar_steps else step
        direction = self.direction
        if row_norm is not None:
            direction = row_norm * direction + (1 - row_norm) * (step**2).mean(1)
            a = (direction / (1 - row_norm**t)) ** 0.5
            normalized = step / (a + 1e-3 * a.mean()).unsqueeze(1)
            step = normalized * step.norm() / normalized.norm()
        root_rows = _damped((rows / filled) ** 0.5, eps)
        if graft == "factored":
            adam = ahead / torch.outer(root_rows, _damped((columns / rows.sum()) ** 0.5, eps))
            step = step * adam.norm() / step.norm()
        elif graft == "own":
            adam = ahead / root_rows.unsqueeze(1) * len(columns) ** 0.5
            step = step * max(1.0, 0.5 * float(adam.norm() / step.norm()))
        X = self.X - lr * (step + weight_decay * self.X)
        return Soap(X, M, L, R, U_L, U_R, V, rows, columns, direction, t)


def _damped(root: Tensor, eps: float) -> Tensor:
    return root + eps * root.max()
