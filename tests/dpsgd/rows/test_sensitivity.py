"""What one row adds to the sum that FusedDPOptimizer releases: for each layer it takes, or the refusal by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import GradSampleModule

from leakcore.dpsgd import FusedDPOptimizer
from tests.dpsgd.opacus_models import made
from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.rows.layer_models import EXAMPLES

pytestmark = IGNORED

ROWS, NORM = 5, 0.05


def _released(plain: nn.Module, x: torch.Tensor, y: torch.Tensor, batch_first: bool = True) -> torch.Tensor:
    """The sum of clipped gradients, without noise."""
    module = GradSampleModule(copy.deepcopy(plain), loss_reduction="sum", batch_first=batch_first)
    optimizer = made(FusedDPOptimizer, module, max_grad_norm=NORM, loss_reduction="sum")
    functional.cross_entropy(module(x), y, reduction="sum").backward()
    optimizer.pre_step()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad])


def _of_row(plain: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One row's gradient by autograd, clipped."""
    trained = [p for p in plain.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(functional.cross_entropy(plain(x), y), trained)
    whole = torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in gradients])
    return whole * min(1.0, NORM / (float(whole.norm()) + 1e-6))


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(name: str) -> None:
    """Within 1e-6 of C; and the sum is that of autograd's rows to 1e-10. Or the first step refuses, by name."""
    example = EXAMPLES[name]
    torch.manual_seed(5)
    plain, x = example.model().double(), example.rows(ROWS)
    y = torch.arange(ROWS) % 4
    if example.refused:
        with pytest.raises(ValueError, match=example.refused):
            _released(plain, x, y, example.batch_first)
        return
    whole = _released(plain, x, y, example.batch_first)
    expected = sum(_of_row(plain, x[i : i + 1], y[i : i + 1]) for i in range(ROWS))
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-10 * float(torch.as_tensor(expected).norm()))
    assert float(whole.norm()) > 0.1 * NORM
    for i in range(ROWS):
        rest = torch.arange(ROWS) != i
        moved = float((whole - _released(plain, x[rest], y[rest], example.batch_first)).norm())
        assert moved <= NORM * (1 + 1e-6)
