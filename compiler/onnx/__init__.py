"""ONNX models: reading hostile files, and turning their operators into those of the graph."""
