"""batches -> logits: loading, one file per ViT library, the one forward."""
