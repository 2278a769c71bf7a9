"""Models built in Python: layers that take their weights by name, and the common networks made of them.

`weights` finds arrays, `layers` is a GraphBuilder with layers (more of them in `attention` and `recurrent`), and each
other module is one network, as its paper has it.
"""
