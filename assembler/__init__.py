"""Text to `Program` and back.

`assemble` reads a text, `assemble_file` a file; `disassemble` writes the text that assembles to the same program,
`instruction_texts` that of each instruction.
"""

from dla.assembler.assembler import assemble, assemble_file
from dla.assembler.disassembler import disassemble, instruction_texts

__all__ = ["assemble", "assemble_file", "disassemble", "instruction_texts"]
