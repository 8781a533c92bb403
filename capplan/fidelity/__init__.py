"""How far predictions are from measured servers: the figures frozen in ``data/validation``."""

from capplan.fidelity.frozen import RTX4090, frozen_errors, holding, short

__all__ = ["RTX4090", "frozen_errors", "holding", "short"]
