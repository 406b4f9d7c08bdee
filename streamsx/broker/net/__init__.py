"""Network side of the embedded broker: listener, connections, TLS and SASL."""
