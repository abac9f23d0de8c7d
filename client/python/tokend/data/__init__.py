"""Making shards of text, and looking at what was served."""
