"""A network trained by plain PyTorch: what somebody else's training script might look like. Nothing of Recollect in it.

    python examples/plain_pytorch.py runs/plain
    recollect audit runs/plain/init.pt runs/plain/trained.pt --out runs/plain/audit

Sixteen crops of scikit-learn's two photographs, a network of two `nn.Linear` layers as PyTorch initialises them, biases
and all; full-batch gradient descent until the targets are met. It saves the weights before and after training, and the
training inputs as well, so that the audit can be checked: --truth runs/plain/inputs.npz.
"""

import sys
from pathlib import Path

import numpy
import torch
from sklearn.datasets import load_sample_images
from torch import nn

IMAGES, SIZE, WIDTH = 16, 32, 1000


def photographs() -> tuple[torch.Tensor, torch.Tensor]:
    """Crops of a temple (label 0) and of a flower (label 1), standardised with one mean and one deviation."""
    crops, labels = [], []
    generator = numpy.random.default_rng(0)
    for k in range(IMAGES):
        photograph = load_sample_images().images[k % 2]
        top, left = (int(generator.integers(0, side - 8 * SIZE)) for side in photograph.shape[:2])
        crop = photograph[top : top + 8 * SIZE, left : left + 8 * SIZE].astype(float)
        crops.append(crop.reshape(SIZE, 8, SIZE, 8, 3).mean(axis=(1, 3)).transpose(2, 0, 1))
        labels.append(k % 2)
    pixels = torch.tensor(numpy.stack(crops), dtype=torch.float32)
    return (pixels - pixels.mean()) / pixels.std(), torch.tensor(labels)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    inputs, labels = photographs()
    targets = nn.functional.one_hot(labels, 2).float()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "init.pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.002)
    for step in range(100_000):
        loss = nn.functional.mse_loss(model(inputs), targets)
        if step % 1000 == 0:
            print(f"step {step}: loss {float(loss):.2e}")
        if loss < 1e-6:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), folder / "trained.pt")
    numpy.savez(folder / "inputs.npz", inputs=inputs.flatten(1).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
