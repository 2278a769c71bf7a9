"""The compiler: a model's graph -> `Program`."""
