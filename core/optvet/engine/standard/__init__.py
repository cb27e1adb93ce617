"""What the ONNX standard defines: for which operands it has an answer, and which it allows.

A runtime is right to refuse what the standard forbids, and two runtimes may answer differently
where it says nothing. Nothing in this package runs a model or knows what is vetted: callers bring
models and values.
"""
