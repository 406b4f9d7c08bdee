"""What `streamsx demo` shows: its processes, its lines, its screen, its verdict. No command."""
