"""`shoal doctor`: runs an environment for a while, and says what of the contract it keeps and what it breaks."""
