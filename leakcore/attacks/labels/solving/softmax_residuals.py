"""K logits behind one weight vector: N·K residuals, each row summing to 0, leave N(K − 1) unknowns.

dL/dW = (1/N) Σ_r Σ_k (dZ_rk/dW) e_rk with e_rk = p_rk − 1{y_r = k} under softmax cross-entropy. Since Σ_k e_rk = 0 the
last class can be written by the others, Σ_k J_rk e_rk = Σ_{k<K} (J_rk − J_rK) e_rk: a system as any other, whose rows
are the differences. (The last layer's weights split into K systems of their own, one per class, and need none of this.)
"""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore.attacks.labels.solving.linear_system import Conditions, SystemSolution, possible


def differences(jacobian: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N·(K − 1), d) rows and (N·(K − 1),) their errors, from (N, K, d) and (N, K); and (d,) what the victim adds up.

    The victim sums K terms per row where these rows hold differences. The sum of their magnitudes is at most
    2·max_k|J_rk| per row, since the residuals of a row are one negative number and others that add up to its opposite.
    """
    n, classes, width = jacobian.shape
    rows = (jacobian[:, :-1] - jacobian[:, -1:]).reshape(n * (classes - 1), width)
    errors = (error[:, :-1] + error[:, -1:]).reshape(-1)
    return rows, errors, 2.0 * np.abs(jacobian).max(axis=1).sum(axis=0)


def every_class(solution: SystemSolution, classes: int, how: Conditions) -> SystemSolution:
    """(N, K) residuals and tolerances from the residuals of the first K − 1 classes; a row is identifiable if all of "
    "it is."""
    residuals = solution.residuals.reshape(-1, classes - 1)
    # A softmax's own rounding may flip the sign of a residual near 0.
    tolerance, alarm = (a.reshape(-1, classes - 1) + 8.0 * how.roundoff for a in (solution.tolerance, solution.alarm))
    tolerance, alarm = (np.c_[a, a.sum(axis=1)] for a in (tolerance, alarm))
    last = -residuals.sum(axis=1, keepdims=True)
    return dataclasses.replace(
        solution,
        residuals=np.c_[residuals, last],
        tolerance=tolerance,
        alarm=alarm,
        identifiable=np.asarray(solution.identifiable.reshape(-1, classes - 1).all(axis=1)),
        fits=solution.fits and (how.noise != 0 or possible(last, tolerance[:, -1:])),
    )


def last_state(states: np.ndarray) -> np.ndarray:
    """(N, K) states from (N, K − 1): the last class is the label (1) just where no other is (all 0); −1 where open."""
    last = np.where((states == 1).any(axis=1), 0, np.where((states == 0).all(axis=1), 1, -1))
    return np.asarray(np.c_[states, last])
