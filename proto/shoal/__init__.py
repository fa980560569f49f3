"""Generated code of shoal's contracts."""
