"""dla: a deep-learning accelerator that exists as an instruction set, and the machines that emulate it."""
