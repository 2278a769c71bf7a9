"""The golden machine: executes the rows' NumPy semantics in order. Written to be read, never tuned."""
