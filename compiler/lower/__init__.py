"""A graph -> `Program`: views to descriptors, dims to registers, the memory plan, emission."""
