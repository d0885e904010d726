"""Text from gradients: which tokens were in the batch, which tokens followed, and whole sequences in their order.

    recovery = text.sequences(model, gradient, batch_size=4, length=32)
    recovery.sequences       # (S, 32) token numbers, −1 after a sequence's end
    recovery.exact(originals)  # which of the true sequences were recovered, for one's own tests

| attack | sees the gradient of | and knows | recovers |
|---|---|---|---|
| `tokens` | the input embedding | for a proof: that no layer shares it | the set of tokens |
| `next_tokens` | the output layer | the number of positions; for a proof: the loss | how often each token was a label |
| `sequences` (DAGER) | the attention projections of two layers | the model | the sequences |

A gradient that was clipped, sequence by sequence or as a whole, gives the same tokens and sequences.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
