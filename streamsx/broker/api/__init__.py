"""Request handlers of the embedded broker: the table in `served`, the handlers by subject."""
