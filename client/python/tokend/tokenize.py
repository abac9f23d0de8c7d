"""`python -m tokend.tokenize`: see tokend.data.tokenize."""

from .data.tokenize import main

if __name__ == "__main__":
    raise SystemExit(main())
