"""Products with packed weights in Triton, for GPUs: what quantized checkpoints run on. README.md has the maths."""
