"""The requests that are served: which, in `served`; the answers, by what they are about."""
