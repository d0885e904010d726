"""Labels from aggregated gradients: the gradient of one weight vector is a linear system in the residuals p − y.

For a binary model with logit Z and p = sigmoid(Z), dL/dW = (1/N) Σ_r (dZ_r/dW)(p_r − y_r) (Yuan, Xue, Wang and Shen
2022, equation 1), and p_r − y_r is positive exactly when y_r = 0. An attacker who knows the rows dZ_r/dW can solve for
all labels of a batch.

    recovery = labels.last_layer(labels.KnownModel(model, batch), model[-1].weight.grad, noise=labels.Noise(0))
    recovery.labels          # 0, 1, or −1 where this gradient does not determine the label
    recovery.determined, recovery.residuals, recovery.tolerance, recovery.rank, recovery.condition

| attack | the attacker knows | and sees the gradient of | the sign comes from |
|---|---|---|---|
| `general` (Algorithm 1) | dZ_r/dW, or the model and the inputs | any weights | the gradient |
| `last_layer` (Algorithm 3) | the inputs of the last layer | the last layer | the gradient |
| `second_last_layer` (Algorithm 4) | the inputs of the layer before | that layer | a prior on the labels |
| `malicious_input` (Algorithm 5) | the first layer; chooses the features | the first layer | a prior on the labels |
| `idlg`, `gradient_norm` (baselines) | nothing | every single example | the gradient; a prior |

The attacker's knowledge is an array or a `KnownModel` (`KnownHiddenLayer`). The observation is an array, a
`GradientObservation`, or the `WeightDifference` of an `SGD` step. `Noise`, `Clipping` and `Precision` describe how it
came about. `combine` joins what several gradients say about one batch.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
