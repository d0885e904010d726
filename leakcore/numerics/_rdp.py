"""dp-accounting's Rényi differential privacy of composed, Poisson-sampled Gaussian steps, imported at the first
call.
"""

from __future__ import annotations

import math
from typing import Any

from leakcore.numerics._loss import PrivacyLoss
from leakcore.numerics._pld import import_dp_accounting

AUTHORS_ORDERS = tuple([1.0 + x / 10.0 for x in range(1, 100)] + [float(a) for a in range(11, 64)])
"""1.1, 1.2, …, 10.9 and 11, 12, …, 63: the orders of the reconstruction paper's released code."""


def composed_accountant(loss: PrivacyLoss, orders: Any = None) -> Any:
    """An RdpAccountant that has composed all steps of `loss` (σ > 0); orders None means dp-accounting's own."""
    dp = import_dp_accounting("rdp")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant() if orders is None else RdpAccountant(orders=[float(a) for a in orders])
    for group in loss.groups:
        event = dp.PoissonSampledDpEvent(group.rate, dp.GaussianDpEvent(group.sigma))
        accountant.compose(event, group.count)
    if loss.gaussian_variance > 0.0:
        accountant.compose(dp.GaussianDpEvent(1.0 / math.sqrt(loss.gaussian_variance)))
    return accountant
