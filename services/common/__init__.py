"""What every process shares; no torch."""
