"""How agents act (numpy) and learn (torch); a library, no process."""
