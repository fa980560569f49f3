"""The replay: facts in, items out."""
