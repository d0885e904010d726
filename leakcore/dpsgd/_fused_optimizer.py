"""Opacus's DPOptimizer with leakcore's clip-and-sum kernel and counter-based or cryptographic noise."""

from __future__ import annotations

import torch

from leakcore import kernels
from leakcore.dpsgd._secure_noise import secure_normal

try:
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
except ImportError as error:
    raise ImportError("FusedDPOptimizer builds on Opacus: pip install 'leakcore[opacus]'") from error


class FusedDPOptimizer(DPOptimizer):  # type: ignore[misc]  # opacus ships no types
    """A drop-in for Opacus's `DPOptimizer` (flat clipping): same arguments, same step, on our clip-and-sum kernel.

    The release is (Σ_i g_i·min(1, C/‖g_i‖) + σC·z)/expected_batch_size, z ~ N(0, I) (Abadi et al. 2016, Algorithm 1),
    so the sensitivity is C and the accountant's ε is Opacus's. Two differences, both on the safe side of the contract:

    - Opacus divides by ‖g_i‖ + 1e-6; here a factor has no added constant. For the same noise a clipped gradient differs
      by at most 1e-6·C/‖g_i‖ < 1e-6 in norm, and the sum by at most 1e-6 times the number of clipped rows.
    - The sum is accumulated in float64 and rounded once (Opacus: float32 `einsum`).

    The step makes no array of the batch's size: gradients are read where Opacus's hooks left them, also when several
    backward passes accumulated (Opacus concatenates those). The hooks' own arrays remain, and with them most of the
    time and the memory of a training step; ghost clipping avoids those.

    generator: a `torch.Generator` (or torch's default) gives one 64-bit seed per step; noise is then a pure function of
        it, by the kernels' Philox generator, which is statistical, not cryptographic: right for experiments and audits.
    secure_mode: True draws noise from operating-system entropy instead (`secure_normal`), for models to be released;
        `generator` is then not used. Drawn on the CPU and copied where the parameters are elsewhere.

    Non-finite gradients raise ValueError with the row's index on the CPU, where Opacus would silently make all
    parameters NaN; on CUDA they make the sum NaN. Arguments otherwise as Opacus documents them; other keywords are
    passed to it.
    """

    @classmethod
    def replace(cls, optimizer: DPOptimizer) -> FusedDPOptimizer:
        """The same optimizer with this step: settings, accounting hook and wrapped optimizer of `optimizer`, which
        should no longer be used. What `PrivacyEngine.make_private` returns may be given.

        Raises TypeError for anything but a plain `DPOptimizer` (per-layer, adaptive, distributed and ghost clipping
        step differently).
        """
        if type(optimizer) is not DPOptimizer:
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}: must be Opacus's DPOptimizer with flat clipping"
            )
        made = cls(
            optimizer.original_optimizer, noise_multiplier=optimizer.noise_multiplier,
            max_grad_norm=optimizer.max_grad_norm, expected_batch_size=optimizer.expected_batch_size,
            loss_reduction=optimizer.loss_reduction, generator=optimizer.generator, secure_mode=optimizer.secure_mode,
        )  # fmt: skip
        made.attach_step_hook(optimizer.step_hook)
        return made

    def clip_and_accumulate(self) -> None:
        """Add Σ_i clip_C(g_i) over the rows of `p.grad_sample` to `p.summed_grad`."""
        parameters = self.params
        samples = [_batches(p) for p in parameters]
        for batches in samples:
            _check_processed_flag(batches)
        if len({len(batches) for batches in samples}) > 1:
            raise ValueError("Number of accumulated steps is inconsistent across parameters")
        for batch in zip(*samples, strict=True):
            sums = kernels.clip_and_noise(_of_one_type(batch), float(self.max_grad_norm)).sum
            for p, value in zip(parameters, sums, strict=True):
                value = value.to(p.dtype)
                p.summed_grad = value if p.summed_grad is None else p.summed_grad.add_(value)
        for p in parameters:
            _mark_as_processed(p.grad_sample)

    def add_noise(self) -> None:
        """`p.grad` = `p.summed_grad` + σC·z."""
        parameters = self.params
        for p in parameters:
            _check_processed_flag(p.summed_grad)
        std = float(self.noise_multiplier) * float(self.max_grad_norm)
        noise = self._normals(parameters) if std > 0 else [None] * len(parameters)
        for p, z in zip(parameters, noise, strict=True):
            p.grad = (p.summed_grad.clone() if z is None else torch.add(p.summed_grad, z, alpha=std)).view_as(p)
            _mark_as_processed(p.summed_grad)

    def _normals(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Standard normals shaped and typed like the parameters."""
        if self.secure_mode:
            return [torch.from_numpy(secure_normal(p.numel())).to(p).view_as(p) for p in parameters]
        device = "cpu" if self.generator is None else self.generator.device
        drawn = torch.randint(2**63 - 1, (), generator=self.generator, device=device)
        seed, made = int(drawn), []
        for index, p in enumerate(parameters):
            kind = "float64" if p.dtype == torch.float64 else "float32"
            made.append(
                kernels.standard_normal(
                    1, p.numel(), seed=seed, purpose="clip_noise", step=0, first_row=index, dtype=kind, like=p.detach()
                ).to(p.dtype).view_as(p)
            )  # fmt: skip
        return made


def _batches(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Per-sample gradients of each backward pass since the last step."""
    samples = getattr(parameter, "grad_sample", None)
    if samples is None:
        raise ValueError("Per sample gradient is not initialized. Not updated in backward pass?")
    return [samples] if isinstance(samples, torch.Tensor) else list(samples)


def _of_one_type(batch: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """As the kernel wants them; mixed precision within one model is the one case that costs a copy."""
    common = batch[0].dtype
    for samples in batch[1:]:
        common = torch.promote_types(common, samples.dtype)
    return [samples.detach().to(common) for samples in batch]
