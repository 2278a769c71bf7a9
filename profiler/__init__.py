"""Where the time of a program goes, beside the native kernels that do the same work."""
