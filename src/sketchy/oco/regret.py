"""Regret: the loss of a learner minus that of the best fixed point in hindsight. And a bound from its steps.

Bounds that are known in advance, one for each learner, are in :mod:`sketchy.core.regret`.
"""

import torch
from torch import Tensor

from sketchy.core.regret import observed
from sketchy.oco.domain import Domain, Everything
from sketchy.oco.hinge_best import best_for_hinge
from sketchy.oco.learner import Learner
from sketchy.oco.loss import Loss
from sketchy.oco.norm import Dense


@torch.no_grad()
def best_point(
    loss: Loss, X: Tensor, y: Tensor, domain: Domain | None = None, most_steps: int = 200
) -> Tensor:
    """The point of the domain (d,) that minimises Σ_t f_t(x), by Newton's method with projection.

    For linear losses there is a closed form. For the hinge loss, :mod:`sketchy.oco.hinge_best` finds the
    point with a certificate. Raises ValueError if there is no minimum: for a linear loss on the whole space,
    or for the logistic loss on separable data.
    """
    domain, X, y = domain or Everything(), X.double(), y.double()
    if loss.name == "hinge":
        return best_for_hinge((2 * y - 1).unsqueeze(-1) * X, domain)
    if loss.curvature is None:
        raise ValueError(
            f"loss={loss.name!r} has no second derivative: use another loss, or your own best point"
        )
    zero = X.new_zeros(X.shape[1])
    if loss.name == "linear":
        return domain.least(X.T @ y)
    x = domain.project(zero.unsqueeze(0), None)[0]
    value = loss.value(X @ x, y).sum()
    for _ in range(most_steps):
        score = X @ x
        g = X.T @ loss.slope(score, y)
        H = X.T @ (loss.curvature(score, y).unsqueeze(-1) * X)
        H.diagonal().add_(1e-14 * H.diagonal().amax() + 1e-300)
        target = domain.project((x - torch.linalg.solve(H, g)).unsqueeze(0), Dense(H.unsqueeze(0)))[0]
        move, step = target - x, 1.0
        while step > 1e-12 and not loss.value(X @ (x + step * move), y).sum() <= value + 1e-4 * step * (
            g @ move
        ):
            step /= 2
        if step <= 1e-12 or -(g @ move) <= 1e-14 * (1 + value.abs()):
            return x
        x = x + step * move
        value = loss.value(X @ x, y).sum()
    raise ValueError(f"no best point found in {most_steps} steps: there may be none (separable data)")


def regret(suffered: Tensor, loss: Loss, X: Tensor, y: Tensor, domain: Domain | None = None) -> Tensor:
    """``suffered`` - min over the domain of Σ f_t(x); ``suffered`` is Σ f_t(x_t) over all rows of X."""
    x = best_point(loss, X, y, domain)
    return suffered - loss.value(X.double() @ x, y.double()).sum()


@torch.no_grad()
def observed_bound(learner: Learner, gradients: Tensor, diameter: float) -> Tensor:
    """An upper bound on the regret on the ``gradients`` (T, d), for any learner. It is known only afterwards.

    Steps and norms depend only on the gradients, not on the points. So pass a new ``learner`` with the same
    settings and no domain: it repeats the steps, and :func:`sketchy.core.regret.observed` computes the bound.
    ``diameter`` is that of the domain, or the largest distance from a played point to the comparator. Domains
    raise zero eigenvalues of a norm to 1e-9 of the largest; the bound ignores this. O(T d²) memory, O(T d³)
    time.
    """
    if learner.round or not isinstance(learner.domain, Everything) or learner.point.ndim > 1:
        raise ValueError("learner has played, or has a domain or several settings: give a new, plain one")
    steps, norms, before = [], [], learner.point
    for g in gradients:
        learner.update(g)
        steps.append(before - learner.point)
        before, norm = learner.point, learner._norm()
        norms.append(torch.eye(learner.dim, dtype=g.dtype) if norm is None else norm.dense(learner.dim)[0])
    return observed(gradients, torch.stack(steps), torch.stack(norms), diameter)
