"""Making quantized checkpoints: methods that round weights, the formats they are written in, layer by layer."""
