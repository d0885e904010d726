"""What Opacus 1.6 says about itself, its hooks and the newest torch in a run that is as it should be."""

import pytest

IGNORED = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:opacus"),
    pytest.mark.filterwarnings("ignore::FutureWarning:opacus"),
]
