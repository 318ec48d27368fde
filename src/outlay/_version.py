"""The version, apart from the package's names, so that what lies below them can record it."""

__version__ = "0.2.0"
