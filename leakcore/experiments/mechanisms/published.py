"""Hyperparameters of published trainings, each with its source."""

from __future__ import annotations

import dataclasses
import functools


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What a source says of a training.

    epsilon: published, at `delta`. steps: of the source, or ⌊n/B⌋ for each of its epochs where it counts epochs.
    loader: how the source says that batches are drawn; "" where it does not say. is_shuffled: whether that is a
    partition of the rows.
    """

    name: str
    source: str
    noise_multiplier: float
    dataset_size: int
    batch_size: int
    steps: int
    delta: float
    epsilon: float
    loader: str = ""
    is_shuffled: bool = False

    @property
    def sample_rate(self) -> float:
        """The rate by which Poisson accounting goes."""
        return self.batch_size / self.dataset_size

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.dataset_size // self.batch_size

    @property
    def epochs(self) -> int:
        """Whole epochs in the steps, so that no scheme runs more steps than were published."""
        return self.steps // self.batches


_MNIST = functools.partial(Training, dataset_size=60_000, delta=1e-5)
_CIFAR = functools.partial(Training, dataset_size=50_000, delta=1e-5)
_DE = "De et al. (2022), experiments/image_classification/configs of github.com/google-deepmind/jax_privacy"

TRAININGS = (
    _MNIST(
        name="Abadi et al. 2016, MNIST",
        source="arXiv 1607.00133, Section 5.1 and Figure 2: q = 0.01, σ = 4, 100 epochs",
        noise_multiplier=4.0,
        batch_size=600,
        steps=10_000,
        epsilon=1.26,
        loader='"randomly permuting the examples and then partitioning them" (Section 3.1)',
        is_shuffled=True,
    ),
    _MNIST(
        name="TensorFlow Privacy tutorial, MNIST",
        source="tutorials/README.md of github.com/tensorflow/privacy, default parameters, 60 epochs of 60,000 // 256",
        noise_multiplier=1.12,
        batch_size=256,
        steps=14_040,
        epsilon=2.92,
        loader="numpy_input_fn(shuffle=True)",
        is_shuffled=True,
    ),
    _MNIST(
        name="Bu et al. 2020, MNIST",
        source="Harvard Data Science Review 2(3), Figure 4: p = 256/60,000, σ = 0.7, 70 epochs, moments accountant",
        noise_multiplier=0.7,
        batch_size=256,
        steps=16_380,
        epsilon=8.68,
    ),
    _MNIST(
        name="Opacus example, MNIST",
        source="examples/mnist_README.md of github.com/pytorch/opacus: -sr 0.004, σ = 1.3, 15 epochs",
        noise_multiplier=1.3,
        batch_size=240,
        steps=3750,
        epsilon=1.19,
        loader="a sampling rate for each row",
    ),
    _CIFAR(
        name="Tramèr and Boneh 2021, CIFAR-10",
        source="README.md and cnns.py of github.com/ftramer/Handcrafted-DP: B = 1024, σ = 1.54, 30 epochs",
        noise_multiplier=1.54,
        batch_size=1024,
        steps=1440,
        epsilon=3.0,
        loader="DataLoader(shuffle=True)",
        is_shuffled=True,
    ),
    _CIFAR(
        name="De et al. 2022, CIFAR-10, WRN-16-4",
        source=f"{_DE}: cifar10_wrn_16_4_eps1.py",
        noise_multiplier=10.0,
        batch_size=4096,
        steps=725,
        epsilon=1.0,
    ),
    _CIFAR(
        name="De et al. 2022, CIFAR-100, WRN-28-10",
        source=f"{_DE}: cifar100_wrn_28_10_eps1_finetune.py",
        noise_multiplier=21.1,
        batch_size=16_384,
        steps=250,
        epsilon=1.0,
    ),
    Training(
        name="De et al. 2022, ImageNet, NF-ResNet-50",
        source=f"{_DE}: imagenet_nf_resnet_50_eps8.py; 1,281,167 rows",
        noise_multiplier=2.5,
        dataset_size=1_281_167,
        batch_size=16_384,
        steps=71_589,
        delta=8e-7,
        epsilon=8.0,
    ),
)
