"""`auto`: what is descended in which order, for the last layer and for all of them. docs/method.md derives both."""

from recollect.stages.all_layers import AllLayerStages
from recollect.stages.base import UNSETTLED, Found, Stages
from recollect.stages.last_layer import LastLayerStages

__all__ = ["UNSETTLED", "AllLayerStages", "Found", "LastLayerStages", "Stages"]
