"""Native kernels of NumPy and CuPy, which have most functions under the same names: where there is no PyTorch."""
