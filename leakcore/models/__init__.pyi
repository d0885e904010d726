from .features import extract_features as extract_features
from .features import load_state_arrays as load_state_arrays
from .features import standardised as standardised
from .features import state_arrays as state_arrays
from .features import train_extractor as train_extractor
from .mlp import ACTIVATIONS as ACTIVATIONS
from .mlp import activation_module as activation_module
from .mlp import breast_cancer_mlp as breast_cancer_mlp
from .mlp import digits_mlp as digits_mlp
from .mlp import layer_sizes as layer_sizes
from .mlp import mlp as mlp
from .mlp import mnist_mlp as mnist_mlp
from .mlp import num_parameters as num_parameters
from .networks import alexnet as alexnet
from .networks import conv_extractor as conv_extractor
from .networks import dlg_lenet as dlg_lenet
from .networks import lenet as lenet
from .networks import textclf as textclf
from .networks import vgg9 as vgg9
from .networks import wide_resnet as wide_resnet
from .networks import wrn_28_10 as wrn_28_10
from .safetensors import load_safetensors as load_safetensors
from .safetensors import read_safetensors as read_safetensors
from .safetensors import save_safetensors as save_safetensors

"""For leakcore's other packages: no promise to users."""

from .features import evaluating as evaluating
