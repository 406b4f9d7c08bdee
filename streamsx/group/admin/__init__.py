"""Administration of a group from outside: describe it, ask instances to leave, follow them."""
