"""`Program` and tensors to tensors: the golden machine (NumPy) and the device machine (CUDA through CuPy)."""
