"""The activations that Recollect knows by name (`victim/activations.py` defines them). Nothing here
imports torch."""

ACTIVATIONS = (
    "relu",
    "leaky-relu",
    "tanh",
    "sigmoid",
    "gelu",
    "silu",
    "elu",
    "softplus",
    "sine",
    "clipped-relu",
    "erf",
)
