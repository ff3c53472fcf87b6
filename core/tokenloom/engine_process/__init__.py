"""An engine in a process of its own: messages, the loop that serves them, and the client that front ends hold."""
