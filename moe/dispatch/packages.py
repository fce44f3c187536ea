"""What is installed in this Python's environment."""

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, requires, version


class Packages:
    """The packages that this process could import; none of them is imported."""

    def version(self, distribution: str) -> str | None:
        """The version of a package; None: it is not installed."""
        try:
            return version(distribution)
        except PackageNotFoundError:
            return None

    def has_module(self, module: str) -> bool:
        """Is there a module of its own, perhaps not from a package? Not asked of parts of one."""
        return "." not in module and importlib.util.find_spec(module) is not None

    def required_torch(self, distribution: str) -> str | None:
        """The one torch that an installed package asks for; None: it names none."""
        if self.version(distribution) is None:
            return None
        for line in requires(distribution) or ():
            match = re.fullmatch(r"torch\s*==\s*([^;\s]+).*", line)
            if match is not None:
                return match[1]
        return None
