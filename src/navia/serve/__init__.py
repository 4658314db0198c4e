"""HTTP service: predicts images and adapts to them in the background."""
