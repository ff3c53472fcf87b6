"""Decoder models in plain PyTorch, and the config that describes one."""
