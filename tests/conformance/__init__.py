"""ONNX's conformance suite on dla's machines: `make conformance` runs it and writes what passes and what does not.

`golden.json` and `gpu.json` are the scoreboards, docs/conformance.md is made from them, and test_conformance.py holds
what passes.
"""
