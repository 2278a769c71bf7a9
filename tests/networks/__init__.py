"""Whole networks as torch modules with random weights, and their export to ONNX: what the compiler is tested on.

The definitions are written here, and spell each layer as torchvision or Hugging Face's transformers does, because
what an exporter emits follows the spelling. Only `catalogue` can be imported without torch.
"""
