"""The layouts of modules that may stay as they are stored."""

from raydix.runtime.model.formats.packed import PackedLayout
from raydix.runtime.model.formats.scaled import ScaledLayout
from raydix.runtime.model.formats.word_groups import AwqLayout, GptqLayout

KeptLayout = ScaledLayout | PackedLayout | GptqLayout | AwqLayout
"""Layouts that say in which form a module may stay (`kept_form`), and bring it into that (`keep`).

All others are restored.
"""
