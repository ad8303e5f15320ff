"""The forms of a norm: products without the d x d matrix equal those with it."""

import torch

from sketchy.oco.norm import LowRank


def test_a_low_rank_product_is_the_dense_one(rng: torch.Generator) -> None:
    settings, rank, dim = 3, 4, 7
    draw = {"generator": rng, "dtype": torch.float64}
    basis = torch.linalg.qr(torch.randn(settings, dim, rank, **draw))[0].mT.clone()
    basis[1, 0] = 0.0  # a direction that is not in use
    norm = LowRank(basis, torch.rand(settings, rank, **draw), torch.rand(settings, 1, **draw))
    x = torch.randn(settings, dim, **draw)
    torch.testing.assert_close(norm.apply(x), (norm.dense(dim) @ x.unsqueeze(-1)).squeeze(-1))
