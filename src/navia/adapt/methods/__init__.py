"""One file per method; each registers itself."""
