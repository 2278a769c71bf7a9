"""The device machine: one persistent CUDA kernel that runs any program."""
