"""Training on records: data sets, orders and loaders. docs/ml.md shows their use."""

from .dataset import Dataset
from .loader import Loader, loader
from .order import Order

__all__ = ["Dataset", "Loader", "Order", "loader"]
