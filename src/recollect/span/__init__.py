"""Which gradients explain Δθ: one file for each way to represent G, one contract for all (`span/base.py`)."""

from recollect.span.base import Endpoints, ExactSpan, Fit, Span
from recollect.span.dense import DenseSpan, dense_bytes
from recollect.span.implicit import ImplicitSpan
from recollect.span.last_layer import Explained, LastLayerSpan
from recollect.span.layerwise import LayerwiseSpan, layerwise_bytes
from recollect.span.rows import Parity, moving, parity

__all__ = [
    "DenseSpan",
    "Endpoints",
    "ExactSpan",
    "Explained",
    "Fit",
    "ImplicitSpan",
    "LastLayerSpan",
    "LayerwiseSpan",
    "Parity",
    "Span",
    "dense_bytes",
    "layerwise_bytes",
    "moving",
    "parity",
]
