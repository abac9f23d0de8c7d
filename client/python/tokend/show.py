"""`python -m tokend.show`: see tokend.data.show."""

from .data.show import main

if __name__ == "__main__":
    raise SystemExit(main())
