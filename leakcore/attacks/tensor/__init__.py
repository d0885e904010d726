"""The tensor method on two-layer networks: a whole batch from the gradient of the output weights alone.

    weights = tensor.GaussianWeights(num_neurons=100_000, num_inputs=20, seed=0)
    g = tensor.output_gradient(inputs, residuals, weights, "elu")      # what is released
    answer = tensor.reconstruct(g, weights, num_examples=4, activation="elu")
    tensor.match(answer, inputs).root_mean_square

`hermite_coefficients` and `choose` say which orders an activation offers. Samples that cannot be told from noise are
counted in `answer.unrecoverable` and never guessed.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
