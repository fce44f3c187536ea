"""The version of the package, below all that imports."""

VERSION = "0.1.0"
