"""One file a trainer."""
