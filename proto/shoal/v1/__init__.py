"""Version 1 of shoal's contracts; regenerate with `make proto`."""
