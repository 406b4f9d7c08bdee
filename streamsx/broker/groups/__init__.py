"""Group coordinator and transaction coordinator of the embedded broker. Pure but for `runtime`."""
