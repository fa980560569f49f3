"""shoal's services; a regular package, so that no folder of the same name later on the path swallows it."""
