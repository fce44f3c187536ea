"""The formats of weights that there are: one line for each file beside this one."""

from raydix.runtime.model.formats.awq import AWQ
from raydix.runtime.model.formats.compressed_tensors import COMPRESSED_TENSORS
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.fp8 import FP8
from raydix.runtime.model.formats.gptq import GPTQ
from raydix.runtime.model.formats.modelopt import MODELOPT
from raydix.runtime.model.formats.mxfp4 import MXFP4
from raydix.runtime.model.formats.plain import PLAIN

WEIGHT_FORMATS: tuple[WeightFormat, ...] = (
    PLAIN,
    FP8,
    COMPRESSED_TENSORS,
    GPTQ,
    AWQ,
    MODELOPT,
    MXFP4,
)
