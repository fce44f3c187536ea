"""Weights as floats: what most checkpoints hold."""

from raydix.runtime.model.formats.definition import WeightFormat

PLAIN = WeightFormat(quant_method=None)
