"""From a model source to named tensors: sources, file formats, and the `Checkpoint` that hides which one it was."""
