"""The contract: the instruction table, tensor descriptors, the program file, the verifier.

`isa` imports no sibling; everything else imports `isa`.
"""
