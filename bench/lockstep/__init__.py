"""Asynchronous training beside lockstep training of the same recipe on the same machine."""
