"""Native kernels of PyTorch. Importing these modules imports it."""
