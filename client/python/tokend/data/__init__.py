"""Programs that make shards from text and show the samples of a run."""
