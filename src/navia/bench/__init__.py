"""many runs -> rows."""
