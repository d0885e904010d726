"""The tensor method on two-layer networks: a whole batch from the gradient of the output weights alone.

    weights = tensor.GaussianWeights(num_neurons=100_000, num_inputs=20, seed=0)
    g = tensor.output_gradient(inputs, residuals, weights, "elu")      # what is released
    answer = tensor.reconstruct(g, weights, num_examples=4, activation="elu")
    tensor.match(answer, inputs).root_mean_square

`hermite_coefficients` and `choose` say which orders an activation offers. Samples that cannot be told from noise are
counted in `answer.unrecoverable` and never guessed.
"""

from leakcore.attacks.tensor.reconstruct import Decomposition, Matched, TensorReconstruction, match, reconstruct
from leakcore.attacks.tensor.weights import GaussianWeights, Orders, choose, hermite_coefficients, output_gradient

__all__ = [
    "Decomposition",
    "GaussianWeights",
    "Matched",
    "Orders",
    "TensorReconstruction",
    "choose",
    "hermite_coefficients",
    "match",
    "output_gradient",
    "reconstruct",
]
