"""One file an algorithm: its networks' roles, how it acts, and its loss."""
