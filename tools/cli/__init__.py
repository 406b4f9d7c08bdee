"""What commands share: options, ends, logs, processes. A folder is never a command."""
