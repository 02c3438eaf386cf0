"""A client of Sheaf, a store of many small records."""

from .errors import Error
from .ids import Ids
from .scan import Split
from .store import Store, connect
from .view import View

__version__ = "0.1.0"
__all__ = ["Error", "Ids", "Split", "Store", "View", "connect"]
