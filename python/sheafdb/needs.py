"""Libraries that only some callers have. They are imported when they are needed, not with this package."""

import importlib


def needed(module, package, what):
    """The module of a library, which the package of this name brings."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise ImportError(f"{what} needs the package {package}, and {module} cannot be imported ({err}):"
                          f" pip install {package}") from err
