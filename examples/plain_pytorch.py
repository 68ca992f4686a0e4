"""A network trained by plain PyTorch: what somebody else's training script might look like. Nothing
of Recollect in it.

    python examples/plain_pytorch.py runs/plain
    recollect audit runs/plain/init.pt runs/plain/trained.pt --out runs/plain/audit

Twenty of scikit-learn's digits, two `nn.Linear` layers as PyTorch initialises them, biases and all;
gradient descent until the targets are met. It saves the weights before and after training, and the
training inputs too, so that the audit can be checked: --truth runs/plain/inputs.npz.
"""

import sys
from pathlib import Path

import numpy
import torch
from sklearn.datasets import load_digits
from torch import nn


def main(folder: Path) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    inputs = torch.tensor(digits.data[:20], dtype=torch.float32)
    inputs = (inputs - inputs.mean()) / inputs.std()
    targets = nn.functional.one_hot(torch.tensor(digits.target[:20]), 10).float()
    model = nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 10))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "init.pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10_000):
        loss = nn.functional.mse_loss(model(inputs), targets)
        if loss < 1e-6:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"loss {loss.item():.1e}")
    torch.save(model.state_dict(), folder / "trained.pt")
    numpy.savez(folder / "inputs.npz", inputs=inputs.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
