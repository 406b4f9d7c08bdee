"""Parts of `streamsx demo`: processes, input lines, screen, verdict. The package is no command."""
