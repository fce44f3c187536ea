"""A new virtual environment with this one's dependencies, but without Raydix."""

import sys
import sysconfig
import venv
from pathlib import Path


def make_clean_venv(folder: Path, *, with_pip: bool = True) -> Path:
    """Create the environment in `folder` and return its interpreter.

    The dependencies come by a path; .pth files on that path are not read, so an editable install
    stays out of sight.
    """
    venv.create(folder, with_pip=with_pip, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages/dependencies.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )
    return folder / "bin/python"
