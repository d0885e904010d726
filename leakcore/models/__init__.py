"""The papers' models as torch modules, and their weights as safetensors. torch is imported at the first call."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.models.features import evaluating as evaluating
    from leakcore.models.features import extract_features as extract_features
    from leakcore.models.features import load_state_arrays as load_state_arrays
    from leakcore.models.features import standardised as standardised
    from leakcore.models.features import state_arrays as state_arrays
    from leakcore.models.features import train_extractor as train_extractor
    from leakcore.models.mlp import ACTIVATIONS as ACTIVATIONS
    from leakcore.models.mlp import activation_module as activation_module
    from leakcore.models.mlp import breast_cancer_mlp as breast_cancer_mlp
    from leakcore.models.mlp import digits_mlp as digits_mlp
    from leakcore.models.mlp import layer_sizes as layer_sizes
    from leakcore.models.mlp import mlp as mlp
    from leakcore.models.mlp import mnist_mlp as mnist_mlp
    from leakcore.models.mlp import num_parameters as num_parameters
    from leakcore.models.networks import alexnet as alexnet
    from leakcore.models.networks import conv_extractor as conv_extractor
    from leakcore.models.networks import dlg_lenet as dlg_lenet
    from leakcore.models.networks import lenet as lenet
    from leakcore.models.networks import textclf as textclf
    from leakcore.models.networks import vgg9 as vgg9
    from leakcore.models.networks import wide_resnet as wide_resnet
    from leakcore.models.networks import wrn_28_10 as wrn_28_10
    from leakcore.models.safetensors import load_safetensors as load_safetensors
    from leakcore.models.safetensors import read_safetensors as read_safetensors
    from leakcore.models.safetensors import save_safetensors as save_safetensors

_NAMES = {
    "dlg_lenet": ".networks",
    "extract_features": ".features",
    "train_extractor": ".features",
    "load_state_arrays": ".features",
    "standardised": ".features",
    "state_arrays": ".features",
    "alexnet": ".networks",
    "lenet": ".networks",
    "textclf": ".networks",
    "vgg9": ".networks",
    "ACTIVATIONS": ".mlp",
    "activation_module": ".mlp",
    "breast_cancer_mlp": ".mlp",
    "digits_mlp": ".mlp",
    "layer_sizes": ".mlp",
    "mlp": ".mlp",
    "mnist_mlp": ".mlp",
    "num_parameters": ".mlp",
    "conv_extractor": ".networks",
    "wide_resnet": ".networks",
    "wrn_28_10": ".networks",
    "load_safetensors": ".safetensors",
    "read_safetensors": ".safetensors",
    "save_safetensors": ".safetensors",
}
_SHARED = {"evaluating": ".features"}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
