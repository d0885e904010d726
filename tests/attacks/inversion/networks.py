"""Networks that the tests of inversion share."""

import torch
from torch import nn


def smooth(inputs=12, hidden=16, classes=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Softplus(), nn.Linear(hidden, classes))
