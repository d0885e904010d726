"""DP-SGD by Opacus on scikit-learn's digits, watched by leakcore: `python examples/opacus_digits.py`, then

    leakcore audit trace trace.npz --coins

The candidates are 500 rows, each trained on or left out by its own fair coin, so that the report may prove a lower
bound on ε. Needs `pip install 'leakcore[opacus]'`.
"""

import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import leakcore

warnings.filterwarnings("ignore")  # Opacus's remarks on hooks and on secure mode
torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
coins = torch.rand(500) < 0.5
trained = torch.cat([torch.arange(500)[coins], torch.arange(500, len(x))])

model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    data_loader=DataLoader(TensorDataset(x[trained], y[trained]), batch_size=150),
    noise_multiplier=1.0,
    max_grad_norm=1.0,
)
criterion = torch.nn.CrossEntropyLoss()

with leakcore.record(optimizer, candidates=(x[:500], y[:500]), members=coins, out="trace.npz"):
    for _ in range(10):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()

print(f"accuracy on the training rows: {(model(x[trained]).argmax(1) == y[trained]).float().mean():.2f}")
print("The run is in trace.npz. Next: leakcore audit trace trace.npz --coins")
