"""What the course teaches, each usable on any model: precision, checkpointing, optimizers, losses, fast products, probes."""
