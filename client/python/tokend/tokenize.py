"""python -m tokend.tokenize is python -m tokend tokenize."""

import sys

from .__main__ import command

if __name__ == "__main__":
    sys.exit(command("tokenize", sys.argv[1:]))
