"""batch -> tokens -> logits: loading, the anatomy of each ViT family, the one forward."""
