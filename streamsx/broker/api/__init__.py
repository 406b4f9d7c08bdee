"""The requests that are served: one file each, named after its key."""
