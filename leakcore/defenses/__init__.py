"""What can be done about a leak: transforms of what is released, which compose, for attacks, audits and training loops.

    defense = Compose(LocalSteps(4, learning_rate=0.1), Prune(keep_fraction=0.1), GaussianNoise(1e-3))
    released = defenses.release(model, x, y, defense=defense, seed=1)     # .gradient (D,), .parts by parameter's name
    attacks.inversion.invert(model, released, (3, 32, 32), labels=y)

| defence | acts on | error bound of the tensor method (Lecture 13, Table 1) |
|---|---|---|
| none | | B√(d/m) |
| `LocalSteps(k, learning_rate)` | training | kB√(d/m) |
| `Dropout(keep_probability)` | training | B√(d/(mp)), p the probability to *keep* (`nn.Dropout` takes the opposite) |
| `ClipSamples(max_grad_norm)` | every sample's gradient | none stated |
| `DPSGD(max_grad_norm, noise_multiplier)` | the sum | none stated (its text uses `Compose(Clip, GaussianNoise)`) |
| `Clip(max_grad_norm)` | the release | B√(d/m) |
| `GaussianNoise(std)` | the release | (B + σ)√(d/m); after `Clip(s)`: (B + σ·max{1, ‖g‖/s})√(d/m) |
| `Laplace(scale)` | the release | none stated |
| `Prune(keep_fraction)` | the release | none stated |

A release passes four stages in this order: training (the model, or several steps of it), samples (B, D) → (B, D), sum
(B, D) → (D,), a mean where no defence says otherwise, release (..., D) → (..., D). Only `DPSGD`, and noise on a
quantity of proven sensitivity, are private; everything else makes one attack harder.

- An attack takes `release(model, x, y, defense=..., seed=...)`, or `defense.apply(gradient, seed=...)` of a gradient.
- Audits and games take a recorded run through `defended(run, defense, seed=...)`, which replaces what the attacker saw.
- A training loop, also Opacus's, calls `attach(optimizer, defense, seed=...)`.
- `audit.run` and `leakcore audit --defense` play the reconstruction game with and without a defence.

`parse` and `spell` read and write defences as text, for files and command lines: "local-steps:4,0.1 + prune:0.1". Noise
here is statistical, for measurement. To release a model use `leakcore.dpsgd.FusedDPOptimizer(secure_mode=True)`, or
Opacus's secure mode.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
