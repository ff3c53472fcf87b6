"""KV memory on the host side: blocks, their keys, who holds them and which may be evicted."""
