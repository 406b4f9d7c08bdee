"""Code that commands share: options, exit codes, logs, processes. A folder is never a command."""
