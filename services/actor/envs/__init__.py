"""Environments an actor can step: the contract and one adapter a file."""
