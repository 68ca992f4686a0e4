"""Data sets to train victims on. Nothing on the attack's side may import this."""

from recollect.data.dataset import Dataset, from_arrays, from_images
from recollect.data.load import load_dataset
from recollect.data.synthetic import synthetic

__all__ = ["Dataset", "from_arrays", "from_images", "load_dataset", "synthetic"]
