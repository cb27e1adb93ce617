"""Hunts in a converter: sources of one operator, then of several, instead of ONNX models."""
