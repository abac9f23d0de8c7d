"""The faults of object stores, for the table at the end of `make test-objects`."""

WINDOW, PIECE = 100, 200  # added to a row of FAULTS: how the dataset is read

FAULTS = {
    1: "500, 502, 503, 504, 429",
    2: "connection refused or reset",
    3: "no first byte, a stalled body",
    4: "body short, long or torn",
    5: "other Content-Range",
    6: "error page with 200",
    7: "credentials expired or rotated under a run",
    8: "clock 20 minutes off",
    9: "credentials wrong from the start",
    10: "one object forbidden",
    11: "object missing (404)",
    12: "object replaced: 412, other ETag, other size",
    13: "archived, other region, 405, 416, gzip, no ranges",
    14: "store killed and started again",
    15: "daemon SIGKILLed",
    16: "all at random, with kills of daemon and store",
    17: "detach and seek while the store hangs",
}
IN_PIECES = (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 16, 17)
ROWS = {
    **{WINDOW + n: f"windows: {text}" for n, text in FAULTS.items()},
    **{PIECE + n: f"pieces: {FAULTS[n]}" for n in IN_PIECES},
}
