from tests.kernels.devices import device as device
