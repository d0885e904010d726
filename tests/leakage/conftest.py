import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """These networks are tiny: threads that wait for each other only cost time, and much of it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
