"""Who may call what: certificates, tokens that are bound to a role, and the guard at a server's door."""
