"""Benchmarks of the actor: against its bare loop, as fast as a GPU simulator asks for, and many of them."""
