"""Native kernels: for each tensor instruction, the call in another library that does the same work.

`library.library_for(machine)` is PyTorch (`pytorch/`) where it can be imported, elsewhere NumPy or CuPy (`arrays/`).
What is measured, on which data, how it is checked and how it is timed is the same for all, and stands here.
"""
