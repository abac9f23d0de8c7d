"""ids.py FILE COUNT: writes a flat shard of random token ids, for shell tests."""

import array
import random
import sys

with open(sys.argv[1], "wb") as file:
    array.array("H", random.choices(range(50000), k=int(sys.argv[2]))).tofile(file)
