"""The other Pythons of this machine."""

import functools
import pathlib
import subprocess


@functools.cache
def find_python(version):
    """Returns the path of a Python that runs, for example of "3.10", or None."""
    installed = pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for path in [f"/usr/bin/python{version}", f"/usr/local/bin/python{version}", *installed]:
        if (
            pathlib.Path(path).exists()
            and subprocess.run([path, "-c", ""], check=False).returncode == 0
        ):
            return str(path)
    return None
