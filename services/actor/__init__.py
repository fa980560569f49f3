"""The actor: acts in a batch of environments and reports what happened."""
