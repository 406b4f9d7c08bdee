"""How commands read their options and end: the same for all. A folder is never a command."""
