"""The papers' models as torch modules, and their weights as safetensors. torch is imported at the first call."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.models._dlg_lenet import dlg_lenet as dlg_lenet
    from leakcore.models._features import extract_features as extract_features
    from leakcore.models._features import train_extractor as train_extractor
    from leakcore.models._frozen import load_state_text as load_state_text
    from leakcore.models._frozen import standardised as standardised
    from leakcore.models._frozen import state_text as state_text
    from leakcore.models._leakage_nets import alexnet as alexnet
    from leakcore.models._leakage_nets import lenet as lenet
    from leakcore.models._leakage_nets import textclf as textclf
    from leakcore.models._leakage_nets import vgg9 as vgg9
    from leakcore.models._mlp import ACTIVATIONS as ACTIVATIONS
    from leakcore.models._mlp import activation_module as activation_module
    from leakcore.models._mlp import breast_cancer_mlp as breast_cancer_mlp
    from leakcore.models._mlp import digits_mlp as digits_mlp
    from leakcore.models._mlp import layer_sizes as layer_sizes
    from leakcore.models._mlp import mlp as mlp
    from leakcore.models._mlp import mnist_mlp as mnist_mlp
    from leakcore.models._mlp import num_parameters as num_parameters
    from leakcore.models._networks import conv_extractor as conv_extractor
    from leakcore.models._networks import wide_resnet as wide_resnet
    from leakcore.models._networks import wrn_28_10 as wrn_28_10
    from leakcore.models._safetensors import load_safetensors as load_safetensors
    from leakcore.models._safetensors import read_safetensors as read_safetensors
    from leakcore.models._safetensors import save_safetensors as save_safetensors

_NAMES = {
    "dlg_lenet": "._dlg_lenet",
    "extract_features": "._features",
    "train_extractor": "._features",
    "load_state_text": "._frozen",
    "standardised": "._frozen",
    "state_text": "._frozen",
    "alexnet": "._leakage_nets",
    "lenet": "._leakage_nets",
    "textclf": "._leakage_nets",
    "vgg9": "._leakage_nets",
    "ACTIVATIONS": "._mlp",
    "activation_module": "._mlp",
    "breast_cancer_mlp": "._mlp",
    "digits_mlp": "._mlp",
    "layer_sizes": "._mlp",
    "mlp": "._mlp",
    "mnist_mlp": "._mlp",
    "num_parameters": "._mlp",
    "conv_extractor": "._networks",
    "wide_resnet": "._networks",
    "wrn_28_10": "._networks",
    "load_safetensors": "._safetensors",
    "read_safetensors": "._safetensors",
    "save_safetensors": "._safetensors",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
