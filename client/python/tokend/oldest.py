"""Refuses a Python that is too old in one line, which its syntax errors would not be."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    TEXT = (
        "tokend: " + sys.executable + " is Python " + sys.version.split()[0] + "; use 3.10 or later"
    )
    if sys.argv[:1] == ["-m"]:
        sys.exit(TEXT)  # without a traceback
    raise ImportError(TEXT)
